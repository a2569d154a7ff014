/* Groups: messages that have one reply subject between them. Part of _speed.c.
 *
 * A reply subject that the server has not met costs it as much as a fifth of a publish: it looks for the
 * subscription in its tree and notes what it found in two caches, where it pushes out something else. So what
 * goes out in one piece, to the same subject, shares the reply of its first message. Which ack is whose they
 * tell by their order: one stream numbers the messages of one connection in the order in which they were
 * sent. So a group is settled when as many acks have come from one stream, with ascending sequences, as it has
 * messages; whatever else is answered is left to the publisher, in Python. No reply is ever used again, so no
 * late answer can be taken for another message's. */
#define MOST_TOGETHER 16

typedef struct {
    PyObject_HEAD
    PyObject *subject;
    PyObject *stream; /* of the first ack; NULL: none has come */
    PyObject *domain;
    uint64_t serial; /* of the first message */
    int count;
    int acked;
    char ended;
    char left; /* one of its answers was left to the publisher: so is all that follows, or their order is lost */
    PyObject *futures[MOST_TOGETHER];
    PyObject *datas[MOST_TOGETHER];
    int64_t seqs[MOST_TOGETHER];
} Group;

static PyTypeObject GroupType;

static Group *make_group(PyObject *subject)
{
    Group *self = (Group *)GroupType.tp_alloc(&GroupType, 0);
    if (self != NULL)
        self->subject = Py_NewRef(subject);
    return self;
}

static int group_traverse(Group *self, visitproc visit, void *arg)
{
    for (int i = 0; i < self->count; i++)
        Py_VISIT(self->futures[i]);
    return 0;
}

static int group_clear(Group *self)
{
    self->ended = 1;
    for (int i = 0; i < self->count; i++) {
        Py_CLEAR(self->futures[i]);
        Py_CLEAR(self->datas[i]);
    }
    return 0;
}

static void group_dealloc(Group *self)
{
    PyObject_GC_UnTrack(self);
    group_clear(self);
    Py_CLEAR(self->subject);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->domain);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static void group_add(Group *self, PyObject *future, PyObject *data)
{
    self->futures[self->count] = Py_NewRef(future);
    self->datas[self->count] = Py_NewRef(data);
    self->count++;
}

static int same_text(PyObject *known, const char *bytes, Py_ssize_t len)
{
    Py_ssize_t size;
    const char *utf8 = PyUnicode_AsUTF8AndSize(known, &size);
    if (utf8 == NULL)
        return -1;
    return size == len && memcmp(utf8, bytes, (size_t)len) == 0;
}

enum { ODD, SEEN, NOTED };

/* Whether an ack is what the group waits for: the next of its stream. Or -1. */
static int group_note(Group *self, PyObject *stream, const Ack *ack)
{
    if (self->ended)
        return SEEN;
    if (self->stream == NULL) {
        PyObject *domain = NULL;
        if (ack->domain != NULL && (domain = text(ack->domain, ack->domain_len)) == NULL)
            return -1;
        self->stream = Py_NewRef(stream);
        self->domain = domain;
    }
    else {
        int same = self->stream == stream ? 1 : same_text(self->stream, ack->stream, ack->stream_len);
        if (same == 1 && (self->domain == NULL) != (ack->domain == NULL))
            same = 0;
        if (same == 1 && self->domain != NULL)
            same = same_text(self->domain, ack->domain, ack->domain_len);
        if (same < 1)
            return same < 0 ? -1 : ODD;
    }
    for (int i = 0; i < self->acked; i++)
        if (self->seqs[i] == ack->seq)
            return SEEN; /* by the next leader too */
    if (ack->duplicate || self->acked == self->count
        || (self->acked && ack->seq < self->seqs[self->acked - 1]))
        return ODD;
    self->seqs[self->acked++] = ack->seq;
    return NOTED;
}

/* All have their acks: tell each. What goes wrong on the way keeps nobody from his. */
static int group_end(Group *self, PyObject *kind)
{
    PyObject *error_kind = NULL, *error = NULL, *trace = NULL;
    self->ended = 1;
    for (int i = 0; i < self->count; i++) {
        Py_CLEAR(self->datas[i]);
        if (settle_future(self->futures[i], kind, self->stream, self->domain, self->seqs[i], 0) < 0) {
            if (error_kind == NULL)
                PyErr_Fetch(&error_kind, &error, &trace);
            else
                PyErr_Clear();
        }
        Py_CLEAR(self->futures[i]);
    }
    if (error_kind == NULL)
        return 0;
    PyErr_Restore(error_kind, error, trace);
    return -1;
}

static PyObject *group_list(Group *self, PyObject *const *items)
{
    PyObject *found = PyList_New(0);
    for (int i = 0; found != NULL && i < self->count; i++)
        if (items[i] != NULL && PyList_Append(found, items[i]) < 0)
            Py_CLEAR(found);
    return found;
}

static PyObject *group_futures(Group *self, void *ignored)
{
    return group_list(self, self->futures);
}

static PyObject *group_datas(Group *self, void *ignored)
{
    return group_list(self, self->datas);
}

static PyObject *group_seqs(Group *self, void *ignored)
{
    int acked = self->acked; /* to make a list may run code by which it gets more */
    PyObject *found = PyList_New(acked);
    for (int i = 0; found != NULL && i < acked; i++) {
        PyObject *seq = PyLong_FromLongLong(self->seqs[i]);
        if (seq == NULL)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, i, seq);
    }
    return found;
}

static PyGetSetDef group_getset[] = {
    {"futures", (getter)group_futures, NULL, "Of its messages; none when it has ended.", NULL},
    {"datas", (getter)group_datas, NULL, "Payloads of its messages; none when it has ended.", NULL},
    {"seqs", (getter)group_seqs, NULL, "Sequences of the acks so far.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef group_members[] = {
    {"subject", T_OBJECT, offsetof(Group, subject), READONLY, "Of its messages."},
    {"stream", T_OBJECT, offsetof(Group, stream), READONLY, "That stores it; None so far."},
    {"domain", T_OBJECT, offsetof(Group, domain), READONLY, "Of that stream, or None."},
    {"count", T_INT, offsetof(Group, count), READONLY, "Messages."},
    {"acked", T_INT, offsetof(Group, acked), READONLY, "Acks so far."},
    {"left", T_BOOL, offsetof(Group, left), 0, "Whether its answers are left to the publisher from now on."},
    {"ended", T_BOOL, offsetof(Group, ended), READONLY, "Whether its futures are settled, or in other hands."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject GroupType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jetspark.wire._speed.Group",
    .tp_basicsize = sizeof(Group),
    .tp_dealloc = (destructor)group_dealloc,
    .tp_traverse = (traverseproc)group_traverse,
    .tp_clear = (inquiry)group_clear,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "Messages that have one reply subject between them.",
    .tp_members = group_members,
    .tp_getset = group_getset,
};
