/* Acks of publishes. Part of _speed.c. */

typedef struct {
    const char *stream;
    const char *domain;
    Py_ssize_t stream_len;
    Py_ssize_t domain_len; /* 0: none */
    int64_t seq;
    int duplicate;
} Ack;

/* A JSON string without escapes: the position after its closing quote, or NULL. */
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

/* Whether it is {"stream": s, "seq": n}, optionally with "domain": s and "duplicate": true, in any order.
 * Anything else, such as an error, is left to a real JSON parser. */
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

static PyObject *names_of_plain_ack, *names_of_full_ack, *name_set_result, *name_done;

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

/* Give a future its ack; if the user has cancelled the future, it stays as it is. */
static int set_result(PyObject *future, PyObject *ack)
{
    PyObject *set = PyObject_CallMethodOneArg(future, name_set_result, ack);
    if (set != NULL) {
        Py_DECREF(set);
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1; /* an interrupt, which may come after the result was set */
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
