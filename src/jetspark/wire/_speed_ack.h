/* Acks of publishes, and the futures that get them. Part of _speed.c. */

typedef struct {
    const char *stream;
    const char *domain;
    Py_ssize_t stream_len;
    Py_ssize_t domain_len; /* 0: none */
    int64_t seq;
    int duplicate;
} Ack;

/* A JSON string without escapes: the place behind its closing quote, or NULL. */
static const char *read_plain_string(const char *at, const char *end, const char **start, Py_ssize_t *len)
{
    if (at == end || *at != '"')
        return NULL;
    *start = ++at;
    while (at < end && *at != '"') {
        if ((unsigned char)*at < 0x20 || (unsigned char)*at > 0x7e || *at == '\\')
            return NULL;
        at++;
    }
    *len = at - *start;
    return at < end ? at + 1 : NULL;
}

/* Whether it is {"stream": s, "seq": n} with perhaps "domain": s and "duplicate": true, in any order. What is
 * anything else, such as an error, is left to a real JSON parser. */
static int read_ack(const char *at, Py_ssize_t size, Ack *ack)
{
    const char *end = at + size;
    memset(ack, 0, sizeof *ack);
    if (at == end || *at != '{')
        return 0;
    do {
        const char *name;
        Py_ssize_t len;
        at++;
        while (at < end && *at == ' ')
            at++;
        at = read_plain_string(at, end, &name, &len);
        if (at == NULL || at == end || *at != ':')
            return 0;
        at++;
        while (at < end && *at == ' ')
            at++;
        if (len == 6 && memcmp(name, "stream", 6) == 0 && ack->stream == NULL)
            at = read_plain_string(at, end, &ack->stream, &ack->stream_len);
        else if (len == 6 && memcmp(name, "domain", 6) == 0 && ack->domain == NULL)
            at = read_plain_string(at, end, &ack->domain, &ack->domain_len);
        else if (len == 3 && memcmp(name, "seq", 3) == 0 && ack->seq == 0) {
            const char *digits = at;
            while (at < end && *at >= '0' && *at <= '9')
                at++;
            /* JSON has no leading zeros, and an ack has no sequence 0. */
            ack->seq = at > digits && *digits != '0' ? read_number(digits, at) : -1;
            if (ack->seq < 0)
                return 0;
        }
        else if (len == 9 && memcmp(name, "duplicate", 9) == 0 && !ack->duplicate && end - at > 4
                 && memcmp(at, "true", 4) == 0) {
            ack->duplicate = 1;
            at += 4;
        }
        else
            return 0;
        if (at == NULL || at == end)
            return 0;
    } while (*at == ',');
    return *at == '}' && at + 1 == end && ack->stream_len > 0 && ack->seq > 0
           && (ack->domain == NULL || ack->domain_len > 0);
}

static PyObject *names_of_plain_ack, *names_of_full_ack, *name_set_result, *name_done, *no_arguments;

static PyObject *make_ack(PyObject *kind, PyObject *stream, PyObject *domain, int64_t number, int duplicate)
{
    PyObject *seq = PyLong_FromLongLong(number);
    if (seq == NULL)
        return NULL;
    PyObject *made;
    if (domain == NULL && !duplicate) {
        PyObject *values[3] = {NULL, stream, seq};
        made = PyObject_Vectorcall(kind, values + 1, PY_VECTORCALL_ARGUMENTS_OFFSET, names_of_plain_ack);
    }
    else {
        PyObject *values[5] = {NULL, stream, seq, domain == NULL ? Py_None : domain,
                               duplicate ? Py_True : Py_False};
        made = PyObject_Vectorcall(kind, values + 1, PY_VECTORCALL_ARGUMENTS_OFFSET, names_of_full_ack);
    }
    Py_DECREF(seq);
    return made;
}

/* Give a future its ack; one that the user has cancelled keeps what it has. */
static int set_result(PyObject *future, PyObject *ack)
{
    PyObject *set = PyObject_CallMethodOneArg(future, name_set_result, ack);
    if (set != NULL) {
        Py_DECREF(set);
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1; /* an interrupt, which may come when the result is set already */
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyObject *done = PyObject_CallMethodNoArgs(future, name_done);
    int is_done = done == NULL ? -1 : PyObject_IsTrue(done);
    Py_XDECREF(done);
    if (is_done == 1) {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return 0;
    }
    PyErr_Clear();
    PyErr_Restore(kind, error, trace);
    return -1;
}

/* AckFuture: an asyncio.Future that is made when somebody looks at it. Most are thrown away unseen, and to
 * initialise one, to make its ack and to set its result are half of what a message costs. Until it is touched
 * it is an object without contents (asyncio's part of it is all zeros), and its ack, when it comes, is noted
 * behind that. Every way to it begins with `wake`. */
typedef struct {
    PyObject *loop; /* NULL: it is awake */
    PyObject *subject;
    PyObject *kind; /* what class the ack has, which has come meanwhile, and its contents; or NULL */
    PyObject *stream;
    PyObject *domain;
    int64_t seq;
    Py_ssize_t size; /* of the message */
    int duplicate;
} Seal;

static PyTypeObject *AckFutureType;
static PyObject *base_set_result; /* asyncio's, which does not wake */

static Seal *seal_of(PyObject *self)
{
    return (Seal *)((char *)self + AckFutureType->tp_base->tp_basicsize);
}

static int wake(PyObject *self)
{
    Seal *seal = seal_of(self);
    if (seal->loop == NULL)
        return 0;
    PyObject *keywords = Py_BuildValue("{sO}", "loop", seal->loop);
    if (keywords == NULL)
        return -1;
    if (seal->loop == NULL) {
        /* That may have collected garbage, and so run code that has woken it: to initialise it once more would
         * take from it what it has got since. */
        Py_DECREF(keywords);
        return 0;
    }
    /* Asks the loop whether it is being debugged: a call, in which another thread may wake it too, or its ack
     * may come. Until it is over it is not awake. */
    int failed = AckFutureType->tp_base->tp_init(self, no_arguments, keywords);
    Py_DECREF(keywords);
    if (failed)
        return -1;
    if (seal->loop == NULL)
        return 0;
    if (seal->kind != NULL) {
        PyObject *ack = make_ack(seal->kind, seal->stream, seal->domain, seal->seq, seal->duplicate);
        if (ack == NULL)
            return -1;
        /* Before it counts as awake: who fails here leaves it to the next who looks. */
        PyObject *values[3] = {NULL, self, ack};
        PyObject *set = seal->loop == NULL ? Py_NewRef(Py_None)
                                           : PyObject_Vectorcall(base_set_result, values + 1,
                                                                 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_DECREF(ack);
        if (set == NULL)
            return -1;
        Py_DECREF(set);
    }
    Py_CLEAR(seal->loop);
    return 0;
}

/* Its ack has come. */
static int settle_future(PyObject *self, PyObject *kind, PyObject *stream, PyObject *domain, int64_t seq,
                         int duplicate)
{
    Seal *seal = seal_of(self);
    if (seal->loop != NULL) {
        if (Py_REFCNT(self) == 1 || seal->kind != NULL)
            return 0; /* nobody will ever ask; or it has its ack, which `wake` may be reading */
        seal->kind = Py_NewRef(kind);
        seal->stream = Py_NewRef(stream);
        seal->domain = Py_XNewRef(domain);
        seal->seq = seq;
        seal->duplicate = duplicate;
        return 0;
    }
    PyObject *made = make_ack(kind, stream, domain, seq, duplicate);
    if (made == NULL)
        return -1;
    int failed = set_result(self, made);
    Py_DECREF(made);
    return failed;
}

static PyObject *make_future(PyObject *loop, PyObject *subject, Py_ssize_t size)
{
    PyObject *self = AckFutureType->tp_alloc(AckFutureType, 0);
    if (self != NULL) {
        seal_of(self)->loop = Py_NewRef(loop);
        seal_of(self)->subject = Py_NewRef(subject);
        seal_of(self)->size = size;
    }
    return self;
}

static int future_traverse(PyObject *self, visitproc visit, void *arg)
{
    Seal *seal = seal_of(self);
    Py_VISIT(seal->loop);
    Py_VISIT(seal->kind);
    PyTypeObject *base = AckFutureType->tp_base;
    if (!PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE))
        Py_VISIT(Py_TYPE(self));
    return base->tp_traverse(self, visit, arg);
}

static int future_clear(PyObject *self)
{
    Py_CLEAR(seal_of(self)->loop);
    return AckFutureType->tp_base->tp_clear(self);
}

static void future_dealloc(PyObject *self)
{
    Seal *seal = seal_of(self);
    /* That of one that nobody has seen has nothing to say. */
    if (seal->loop == NULL && PyObject_CallFinalizerFromDealloc(self) < 0)
        return;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(seal->loop);
    Py_CLEAR(seal->subject);
    Py_CLEAR(seal->kind);
    Py_CLEAR(seal->stream);
    Py_CLEAR(seal->domain);
    PyTypeObject *type = Py_TYPE(self), *base = type->tp_base;
    base->tp_dealloc(self);
    if (!PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE))
        Py_DECREF(type); /* else it has done so */
}

static PyObject *future_getattro(PyObject *self, PyObject *name)
{
    return wake(self) < 0 ? NULL : PyObject_GenericGetAttr(self, name);
}

static int future_setattro(PyObject *self, PyObject *name, PyObject *value)
{
    return wake(self) < 0 ? -1 : PyObject_GenericSetAttr(self, name, value);
}

static PyObject *future_repr(PyObject *self)
{
    return wake(self) < 0 ? NULL : AckFutureType->tp_base->tp_repr(self);
}

static PyObject *future_iter(PyObject *self)
{
    return wake(self) < 0 ? NULL : AckFutureType->tp_base->tp_iter(self);
}

static PyObject *future_await(PyObject *self)
{
    return wake(self) < 0 ? NULL : AckFutureType->tp_base->tp_as_async->am_await(self);
}

static PyObject *future_subject(PyObject *self, void *ignored)
{
    return Py_NewRef(seal_of(self)->subject);
}

static PyGetSetDef future_getset[] = {
    {"_subject", (getter)future_subject, NULL, "Of the message.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* When the first publisher needs it: nobody else has to import asyncio. */
static int ready_ack_future(void)
{
    if (AckFutureType != NULL)
        return 0;
    PyObject *module = PyImport_ImportModule("_asyncio");
    PyObject *base = module == NULL ? NULL : PyObject_GetAttrString(module, "Future");
    Py_XDECREF(module);
    if (base == NULL)
        return -1;
    PyType_Slot slots[] = {
        {Py_tp_doc, "The future of a publish's ack."},
        {Py_tp_traverse, future_traverse},
        {Py_tp_clear, future_clear},
        {Py_tp_dealloc, future_dealloc},
        {Py_tp_getattro, future_getattro},
        {Py_tp_setattro, future_setattro},
        {Py_tp_repr, future_repr},
        {Py_tp_iter, future_iter},
        {Py_am_await, future_await},
        {Py_tp_getset, future_getset},
        {0, NULL},
    };
    PyType_Spec spec = {
        .name = "jetspark.wire._speed.AckFuture",
        .basicsize = (int)(((PyTypeObject *)base)->tp_basicsize + (Py_ssize_t)sizeof(Seal)),
        /* Immutable as its base is: whoever replaced a slot would meet it asleep. */
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION
                 | Py_TPFLAGS_IMMUTABLETYPE,
        .slots = slots,
    };
    if (base_set_result == NULL)
        base_set_result = PyObject_GetAttr(base, name_set_result);
    PyObject *type = base_set_result == NULL ? NULL : PyType_FromSpecWithBases(&spec, base);
    Py_DECREF(base);
    AckFutureType = (PyTypeObject *)type;
    return type == NULL ? -1 : 0;
}
