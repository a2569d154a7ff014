/* Launching: a publisher's plain messages, from the call to the outbox. Part of _speed.c. */

/* What `await` has at once: a coroutine that has ended before it began. */
typedef struct {
    PyObject_HEAD
    PyObject *value;
} Ready;

static PyTypeObject ReadyType;

/* Takes over value. */
static PyObject *make_ready(PyObject *value)
{
    Ready *self = PyObject_New(Ready, &ReadyType);
    if (self == NULL) {
        Py_DECREF(value);
        return NULL;
    }
    self->value = value;
    return (PyObject *)self;
}

static void ready_dealloc(Ready *self)
{
    Py_CLEAR(self->value);
    PyObject_Free(self);
}

static PySendResult ready_am_send(Ready *self, PyObject *sent, PyObject **result)
{
    *result = NULL;
    if (self->value == NULL)
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    else if (sent != Py_None)
        PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
    else {
        *result = self->value;
        self->value = NULL;
        return PYGEN_RETURN;
    }
    return PYGEN_ERROR;
}

static PyObject *ready_send(Ready *self, PyObject *sent)
{
    PyObject *value;
    if (ready_am_send(self, sent, &value) == PYGEN_RETURN) {
        PyErr_SetObject(PyExc_StopIteration, value);
        Py_DECREF(value);
    }
    return NULL;
}

static PyObject *ready_next(Ready *self)
{
    return ready_send(self, Py_None);
}

static PyObject *ready_throw(Ready *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_CLEAR(self->value);
    PyObject *value = nargs > 1 && args[1] != Py_None ? args[1] : NULL;
    if (nargs >= 1 && nargs <= 3 && PyExceptionInstance_Check(args[0]))
        PyErr_SetObject((PyObject *)Py_TYPE(args[0]), args[0]);
    else if (nargs >= 1 && nargs <= 3 && PyExceptionClass_Check(args[0]))
        PyErr_SetObject(args[0], value);
    else
        PyErr_SetString(PyExc_TypeError, "throw(exception)");
    return NULL;
}

static PyObject *ready_close(Ready *self, PyObject *ignored)
{
    Py_CLEAR(self->value);
    Py_RETURN_NONE;
}

/* With these three it is a collections.abc.Coroutine, and a task may be made of it. */
static PyMethodDef ready_methods[] = {
    {"send", (PyCFunction)ready_send, METH_O, NULL},
    {"throw", (PyCFunction)(void (*)(void))ready_throw, METH_FASTCALL, NULL},
    {"close", (PyCFunction)ready_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyAsyncMethods ready_async = {
    .am_await = PyObject_SelfIter,
    .am_send = (sendfunc)ready_am_send,
};

static PyTypeObject ReadyType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jetspark.wire._speed.Ready",
    .tp_basicsize = sizeof(Ready),
    .tp_dealloc = (destructor)ready_dealloc,
    .tp_as_async = &ready_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)ready_next,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A coroutine that ended before it began.",
    .tp_methods = ready_methods,
};

#define HEARD 1024

typedef struct {
    PyObject_HEAD
    PyObject *inbox;
    PyObject *pending;
    PyObject *loop;
    uint64_t serial;    /* of the last message */
    /* Whoever calls `publish` while these allow it is served here; all others by `general`. */
    PyObject *general;
    PyObject *prefixes;
    PyObject *out;
    Py_ssize_t window;
    Py_ssize_t longest; /* prefix */
    Py_ssize_t limit;   /* of a message's size */
    Py_ssize_t credit;  /* bytes */
    Py_ssize_t filled;  /* pieces of out when we left it, and the last of them */
    PyObject *mark;
    Py_ssize_t count;   /* messages sent so, and their bytes, that nobody has been told of */
    Py_ssize_t size;
    unsigned long thread; /* that armed it: the loop's */
    /* Groups begin when so many acks of lone messages have come, all from one stream, and have as large messages
     * as those had. */
    Group *group; /* that may grow; or NULL */
    Py_ssize_t grouped; /* messages that are in pending only by the first of their group */
    Py_ssize_t alone;
    Py_ssize_t proven;
    uint64_t since; /* the last serial when groups were put off */
    /* Second answers. One that repeats the first is of the next leader. Any other is of a second stream, which
     * then has answered to the first message of a write, which goes alone, before it answers to a group behind
     * that. So up to `doubted`, the last serial of then, acks may be of two streams of one name. */
    Py_ssize_t strays;
    uint64_t doubted;
    struct {
        uint64_t serial;
        int64_t seq;
    } heard[HEARD]; /* what lone messages were answered lately, by their serials */
    PyObject *stream;
} Launcher;

static PyTypeObject LauncherType;

/* The ack of a lone message. */
static int launcher_heard(Launcher *self, uint64_t serial, PyObject *stream, PyObject *future, const Ack *ack)
{
    if (self->stream == NULL)
        self->stream = Py_NewRef(stream);
    else if (self->stream != stream) {
        int same = same_text(self->stream, ack->stream, ack->stream_len);
        if (same < 0)
            return -1;
        if (!same)
            self->alone = PY_SSIZE_T_MAX; /* for good: its messages go to several streams */
    }
    if (self->alone > 0 && self->alone < PY_SSIZE_T_MAX && serial > self->since)
        self->alone--;
    if (seal_of(future)->size > self->proven)
        self->proven = seal_of(future)->size;
    self->heard[serial % HEARD].serial = serial;
    self->heard[serial % HEARD].seq = ack->seq;
    return 0;
}

/* An answer to a message that is not pending; seq is 0 when it is no ack. */
static void launcher_stray(Launcher *self, uint64_t serial, int64_t seq)
{
    if (serial == 0 || serial > self->serial)
        return;
    int known = self->heard[serial % HEARD].serial == serial;
    if (known && self->heard[serial % HEARD].seq == seq)
        return;
    self->strays++;
    if (known)
        self->doubted = self->serial;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *inbox, *pending, *loop;
    if ((kwargs != NULL && PyDict_GET_SIZE(kwargs))
        || !PyArg_ParseTuple(args, "SO!O", &inbox, &PyDict_Type, &pending, &loop)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "Launcher() takes no keyword arguments");
        return NULL;
    }
    if (ready_ack_future() < 0)
        return NULL;
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->inbox = Py_NewRef(inbox);
    self->pending = Py_NewRef(pending);
    self->loop = Py_NewRef(loop);
    return (PyObject *)self;
}

static int launcher_traverse(Launcher *self, visitproc visit, void *arg)
{
    Py_VISIT(self->pending);
    Py_VISIT(self->loop);
    Py_VISIT(self->general);
    Py_VISIT(self->prefixes);
    Py_VISIT(self->out);
    Py_VISIT(self->group);
    return 0;
}

static int launcher_clear(Launcher *self)
{
    Py_CLEAR(self->pending);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->general);
    Py_CLEAR(self->prefixes);
    Py_CLEAR(self->out);
    Py_CLEAR(self->group);
    self->credit = 0;
    self->filled = 0;
    return 0;
}

static void launcher_dealloc(Launcher *self)
{
    PyObject_GC_UnTrack(self);
    launcher_clear(self);
    Py_CLEAR(self->inbox);
    Py_CLEAR(self->stream);
    Py_CLEAR(self->mark);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Send a message whose reply has this serial, under which entry is noted (NULL: it has been). Runs no code but
 * ours. */
static int launch(Launcher *self, PyObject *out, PyObject *prefix, uint64_t serial, PyObject *entry,
                  PyObject *data)
{
    PyObject *key = PyLong_FromUnsignedLongLong(serial);
    PyObject *whole = key == NULL ? NULL : frame(prefix, self->inbox, serial, data);
    int failed = whole == NULL || (entry != NULL && PyDict_SetItem(self->pending, key, entry) < 0);
    if (!failed && PyList_Append(out, whole) < 0) {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (entry != NULL && PyDict_DelItem(self->pending, key) < 0)
            PyErr_Clear();
        PyErr_Restore(kind, error, trace);
        failed = 1;
    }
    Py_XDECREF(key);
    Py_XDECREF(whole);
    return failed ? -1 : 0;
}

PyDoc_STRVAR(launch_doc,
"launch(out, prefix, serial, subject, data) -> future\n\n"
"Append a whole publish to out, and note the future of its ack in pending under its serial.");

static PyObject *launcher_launch(Launcher *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyList_Check(args[0]) || !PyBytes_Check(args[1]) || !PyLong_Check(args[2])
        || !PyUnicode_Check(args[3]) || !PyBytes_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "launch(list, bytes, int, str, bytes)");
        return NULL;
    }
    uint64_t serial = PyLong_AsUnsignedLongLong(args[2]);
    if (serial == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    if (self->loop == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the launcher is gone");
        return NULL;
    }
    PyObject *future = make_future(self->loop, args[3], PyBytes_GET_SIZE(args[4]));
    if (future != NULL && launch(self, args[0], args[1], serial, future, args[4]) < 0)
        Py_CLEAR(future);
    return future;
}

PyDoc_STRVAR(reserve_doc, "reserve(count) -> int\n\nSerials for so many messages: the first of them.");

static PyObject *launcher_reserve(Launcher *self, PyObject *argument)
{
    Py_ssize_t count = PyLong_AsSsize_t(argument);
    if (count < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "count must not be negative");
        return NULL;
    }
    PyObject *first = PyLong_FromUnsignedLongLong(self->serial + 1);
    if (first != NULL)
        self->serial += (uint64_t)count;
    return first;
}

PyDoc_STRVAR(arm_doc,
"arm(general, prefixes, window, longest)\n\n"
"Have publish(subject, data) serve what needs no general call: subjects with a prefix of at most longest\n"
"bytes, while fewer than window messages are pending and what was granted lasts.");

static PyObject *launcher_arm(Launcher *self, PyObject *args)
{
    PyObject *general, *prefixes;
    Py_ssize_t window, longest;
    if (!PyArg_ParseTuple(args, "OO!nn", &general, &PyDict_Type, &prefixes, &window, &longest))
        return NULL;
    Py_XSETREF(self->general, Py_NewRef(general));
    Py_XSETREF(self->prefixes, Py_NewRef(prefixes));
    self->window = window;
    self->longest = longest;
    self->thread = PyThread_get_thread_ident();
    self->credit = 0;
    Py_RETURN_NONE;
}

static void leave(Launcher *self)
{
    self->filled = PyList_GET_SIZE(self->out);
    Py_XSETREF(self->mark, self->filled ? Py_NewRef(PyList_GET_ITEM(self->out, self->filled - 1)) : NULL);
}

PyDoc_STRVAR(grant_doc,
"grant(out, credit, limit)\n\n"
"Until credit bytes are used up, messages of at most limit bytes may be appended to out, as long as it is not\n"
"empty: who finds it empty has to see to it that it is sent.");

static PyObject *launcher_grant(Launcher *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "grant(list, int, int)");
        return NULL;
    }
    Py_ssize_t credit = PyLong_AsSsize_t(args[1]), limit = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred())
        return NULL;
    Py_XSETREF(self->out, Py_NewRef(args[0]));
    self->credit = credit;
    self->limit = limit;
    leave(self);
    Py_CLEAR(self->group); /* what is answered together is sent together */
    Py_RETURN_NONE;
}

PyDoc_STRVAR(revoke_doc, "revoke()\n\nTake back what was granted.");

static PyObject *launcher_revoke(Launcher *self, PyObject *ignored)
{
    self->credit = 0;
    Py_CLEAR(self->group);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(tally_doc, "tally() -> (messages, bytes)\n\nWhat publish has sent since the last call.");

static PyObject *launcher_tally(Launcher *self, PyObject *ignored)
{
    PyObject *counted = Py_BuildValue("(nn)", self->count, self->size);
    if (counted != NULL)
        self->count = self->size = 0;
    return counted;
}

static int may_launch(Launcher *self, PyObject *data)
{
    /* When it was written meanwhile, what others left there since begins another write. */
    return self->credit > 0 && PyBytes_GET_SIZE(data) <= self->limit && self->filled
           && PyList_GET_SIZE(self->out) >= self->filled && PyList_GET_ITEM(self->out, self->filled - 1) == self->mark
           && PyDict_GET_SIZE(self->pending) + self->grouped < self->window
           && PyThread_get_thread_ident() == self->thread;
}

PyDoc_STRVAR(isolate_doc,
"isolate(count)\n\n"
"Begin no group before the acks of so many lone messages have come.");

static PyObject *launcher_isolate(Launcher *self, PyObject *argument)
{
    Py_ssize_t count = PyLong_AsSsize_t(argument);
    if (count < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "count must not be negative");
        return NULL;
    }
    if (count > self->alone)
        self->alone = count;
    self->strays = 0;
    self->since = self->serial;
    Py_CLEAR(self->group);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(stray_doc, "stray(serial, seq)\n\nThere was an answer to a message that is not pending; seq 0: no ack.");

static PyObject *launcher_stray_method(Launcher *self, PyObject *args)
{
    unsigned long long serial;
    long long seq;
    if (!PyArg_ParseTuple(args, "KL", &serial, &seq))
        return NULL;
    launcher_stray(self, serial, seq);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(disband_doc,
"disband(group) -> futures\n\n"
"Of a group that somebody else has taken out of pending, and settles.");

static PyObject *launcher_disband(Launcher *self, PyObject *argument)
{
    if (!Py_IS_TYPE(argument, &GroupType)) {
        PyErr_SetString(PyExc_TypeError, "disband(Group)");
        return NULL;
    }
    Group *group = (Group *)argument;
    PyObject *futures = group_list(group, group->futures);
    if (futures != NULL && !group->ended) {
        self->grouped -= group->count - 1;
        group_clear(group);
    }
    return futures;
}

static int may_share(Launcher *self, PyObject *data)
{
    return self->alone == 0 && PyBytes_GET_SIZE(data) <= self->proven;
}

/* The group that the message can join, or NULL. */
static Group *group_for(Launcher *self, PyObject *subject, PyObject *data)
{
    Group *group = self->group;
    if (group == NULL || group->ended || group->count == MOST_TOGETHER || !may_share(self, data))
        return NULL;
    return group->subject == subject || PyUnicode_Compare(group->subject, subject) == 0 ? group : NULL;
}

PyDoc_STRVAR(publish_doc,
"publish(subject, data, ...) -> an awaitable of the future\n\n"
"Launch it here and now where that is allowed; otherwise what general makes of the arguments.");

static PyObject *launcher_publish(Launcher *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    if (nargs == 2 && names == NULL && PyUnicode_CheckExact(args[0]) && PyBytes_CheckExact(args[1])
        && may_launch(self, args[1])) {
        PyObject *subject = args[0], *data = args[1];
        Group *fresh = NULL;
        /* These may collect garbage, and so run any code. */
        PyObject *future = make_future(self->loop, subject, PyBytes_GET_SIZE(data));
        if (future == NULL)
            return NULL;
        if (may_share(self, data) && group_for(self, subject, data) == NULL) {
            fresh = make_group(subject);
            if (fresh == NULL) {
                Py_DECREF(future);
                return NULL;
            }
        }
        PyObject *prefix = may_launch(self, data) ? PyDict_GetItemWithError(self->prefixes, subject) : NULL;
        if (prefix != NULL && PyBytes_CheckExact(prefix) && PyBytes_GET_SIZE(prefix) <= self->longest) {
            uint64_t serial = self->serial + 1;
            Group *group = group_for(self, subject, data);
            int failed;
            if (group != NULL) {
                failed = launch(self, self->out, prefix, group->serial, NULL, data);
                if (!failed)
                    self->grouped++;
            }
            else if (fresh != NULL && may_share(self, data)) {
                group = fresh;
                group->serial = serial;
                failed = launch(self, self->out, prefix, serial, (PyObject *)group, data);
                if (!failed)
                    Py_XSETREF(self->group, (Group *)Py_NewRef(group));
            }
            else
                failed = launch(self, self->out, prefix, serial, future, data);
            if (!failed && group != NULL)
                group_add(group, future, data);
            Py_XDECREF(fresh);
            if (failed) {
                Py_DECREF(future);
                return NULL;
            }
            Py_ssize_t size = PyBytes_GET_SIZE(prefix) + PyBytes_GET_SIZE(self->inbox) + 16;
            size += PyBytes_GET_SIZE(data);
            leave(self);
            self->serial = serial;
            self->count++;
            self->size += size;
            self->credit -= size;
            return make_ready(future);
        }
        Py_DECREF(future);
        Py_XDECREF(fresh);
        if (PyErr_Occurred())
            return NULL;
    }
    if (self->general == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the launcher is not armed");
        return NULL;
    }
    /* What is handed on begins when it is awaited; nothing that comes later may overtake it. */
    self->credit = 0;
    return PyObject_Vectorcall(self->general, args, (size_t)nargs, names);
}

static PyMethodDef launcher_methods[] = {
    {"launch", (PyCFunction)(void (*)(void))launcher_launch, METH_FASTCALL, launch_doc},
    {"reserve", (PyCFunction)launcher_reserve, METH_O, reserve_doc},
    {"arm", (PyCFunction)launcher_arm, METH_VARARGS, arm_doc},
    {"grant", (PyCFunction)(void (*)(void))launcher_grant, METH_FASTCALL, grant_doc},
    {"revoke", (PyCFunction)launcher_revoke, METH_NOARGS, revoke_doc},
    {"isolate", (PyCFunction)launcher_isolate, METH_O, isolate_doc},
    {"stray", (PyCFunction)launcher_stray_method, METH_VARARGS, stray_doc},
    {"disband", (PyCFunction)launcher_disband, METH_O, disband_doc},
    {"tally", (PyCFunction)launcher_tally, METH_NOARGS, tally_doc},
    {"publish", (PyCFunction)(void (*)(void))launcher_publish, METH_FASTCALL | METH_KEYWORDS, publish_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef launcher_members[] = {
    {"serial", T_ULONGLONG, offsetof(Launcher, serial), READONLY, "The number of the last message."},
    {"count", T_PYSSIZET, offsetof(Launcher, count), READONLY, "Messages that tally would tell of."},
    {"doubted", T_ULONGLONG, offsetof(Launcher, doubted), READONLY, "The last serial at the last second answer."},
    {"strays", T_PYSSIZET, offsetof(Launcher, strays), READONLY, "Second answers since the last isolate."},
    {"grouped", T_PYSSIZET, offsetof(Launcher, grouped), READONLY, "Messages that stand behind others in pending."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jetspark.wire._speed.Launcher",
    .tp_basicsize = sizeof(Launcher),
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_traverse = (traverseproc)launcher_traverse,
    .tp_clear = (inquiry)launcher_clear,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Launcher(inbox, pending, loop): sends messages whose acks come to inbox + serial.",
    .tp_methods = launcher_methods,
    .tp_members = launcher_members,
    .tp_new = launcher_new,
};
