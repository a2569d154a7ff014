/* Settling: the answers to publishes, and the table of those without an answer so far. Part of _speed.c. */

static PyObject *name_acked;

/* Consecutive acks of one batch and stream: they are reported to the batch together. */
typedef struct {
    PyObject *batch;
    PyObject *stream;
    Py_ssize_t count;
    Py_ssize_t duplicates;
} Together;

static int tell_batch(Together *together)
{
    PyObject *batch = together->batch, *stream = together->stream;
    together->batch = together->stream = NULL;
    if (batch == NULL)
        return 0;
    PyObject *count = PyLong_FromSsize_t(together->count);
    PyObject *duplicates = PyLong_FromSsize_t(together->duplicates);
    PyObject *told = NULL;
    if (count != NULL && duplicates != NULL)
        told = PyObject_CallMethodObjArgs(batch, name_acked, stream, count, duplicates, NULL);
    Py_XDECREF(count);
    Py_XDECREF(duplicates);
    Py_DECREF(batch);
    Py_DECREF(stream);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

PyDoc_STRVAR(rows_settle_doc,
"settle(cut, pending, ack_class, batch_class) -> (acked, duplicates, taken)\n\n"
"Take each row for the answer to a publish whose serial is its subject from cut on. Those that say no more\n"
"than \"stored\" are taken out of pending: serial -> (future or batch, ...). A future gets its ack, a batch\n"
"a count (acked_many). It stops at the first answer that says something else: taken rows come before it.");

static PyObject *settle_rows(Rows *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyDict_Check(args[1]) || !PyType_Check(args[2]) || !PyType_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "settle(int, dict, type, type)");
        return NULL;
    }
    Py_ssize_t cut = PyLong_AsSsize_t(args[0]);
    if (cut < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "cut must not be negative");
        return NULL;
    }
    PyObject *pending = args[1];
    Py_ssize_t acked = 0, duplicates = 0;
    Together together = {NULL, NULL, 0, 0};
    PyObject *stream = NULL;
    const char *stream_bytes = NULL;
    Py_ssize_t stream_len = -1;
    PyObject *key = NULL, *flight = NULL;
    Py_ssize_t i = 0;
    for (;; i++) {
        /* Here, because it may run code: the previous one must be gone before a weak reference can reach it,
         * and pending must not change between the look-up and the removal. */
        Py_CLEAR(flight);
        if (i >= self->count)
            break;
        const Row *row = &self->rows[i];
        if (row->subject_len <= cut)
            continue;
        int64_t serial = read_number(row->subject + cut, row->subject + row->subject_len);
        if (serial < 0)
            continue; /* not an answer to one of our publishes */
        Py_XSETREF(key, PyLong_FromLongLong(serial));
        if (key == NULL)
            goto fail;
        PyObject *found = PyDict_GetItemWithError(pending, key);
        if (found == NULL) {
            if (PyErr_Occurred())
                goto fail;
            continue; /* it has its answer already: expired, or sent twice */
        }
        Ack ack;
        int plain = !row->header_len && read_ack(row_data(row), row->data_len, &ack) && PyTuple_Check(found)
                    && PyTuple_GET_SIZE(found) > 0;
        if (!plain)
            break;
        /* What may fail comes before the removal from pending: only what is pending is told of a failure. */
        if (stream == NULL || stream_len != ack.stream_len
            || memcmp(stream_bytes, ack.stream, (size_t)stream_len) != 0) {
            Py_XSETREF(stream, text(ack.stream, ack.stream_len));
            if (stream == NULL)
                goto fail;
            stream_bytes = ack.stream;
            stream_len = ack.stream_len;
        }
        flight = Py_NewRef(found);
        if (PyDict_DelItem(pending, key) < 0)
            goto fail;
        acked++;
        duplicates += ack.duplicate;
        PyObject *target = PyTuple_GET_ITEM(flight, 0);
        if (Py_IS_TYPE(target, (PyTypeObject *)args[3])) {
            if (together.batch != target || together.stream != stream) {
                if (tell_batch(&together) < 0)
                    goto fail;
                together = (Together){Py_NewRef(target), Py_NewRef(stream), 0, 0};
            }
            together.count++;
            together.duplicates += ack.duplicate;
            continue;
        }
        PyObject *domain = NULL;
        if (ack.domain != NULL && (domain = text(ack.domain, ack.domain_len)) == NULL)
            goto fail;
        PyObject *made = make_ack(args[2], stream, domain, ack.seq, ack.duplicate);
        Py_XDECREF(domain);
        if (made == NULL)
            goto fail;
        int failed = set_result(target, made);
        Py_DECREF(made);
        if (failed)
            goto fail;
    }
    if (tell_batch(&together) < 0)
        goto fail;
    Py_XDECREF(key);
    Py_XDECREF(stream);
    return Py_BuildValue("(nnn)", acked, duplicates, i);
fail:
    if (together.batch != NULL) {
        /* The batch was not told of these yet, and they are no longer pending: nothing else would tell it. */
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (tell_batch(&together) < 0)
            PyErr_Clear();
        PyErr_Restore(kind, error, trace);
    }
    Py_XDECREF(key);
    Py_XDECREF(flight);
    Py_XDECREF(stream);
    return NULL;
}

static PyObject *rows_settle(Rows *self, PyObject *const *args, Py_ssize_t nargs)
{
    self->busy++;
    PyObject *settled = settle_rows(self, args, nargs);
    self->busy--;
    return settled;
}
