/* Publishing: whole commands, and the table of what has no ack so far. Part of _speed.c. */

static PyObject *name_acked;

/* Acks of one batch and stream that came one after the other: the batch hears of them together. */
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
"settle(cut, pending, ack_class, batch_class) -> (acked, duplicates, others)\n\n"
"Take each row for the answer to a publish whose serial is its subject from cut on. Those that say no more\n"
"than \"stored\" are taken out of pending: serial -> AckFuture or (future or batch, ...), and the future gets\n"
"its ack, the batch a count (acked_many). Others are the rows that say something else.");

static PyObject *rows_settle(Rows *self, PyObject *const *args, Py_ssize_t nargs)
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
    PyObject *others = PyList_New(0);
    if (others == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Row *row = &self->rows[i];
        if (row->subject_len <= cut)
            continue;
        int64_t serial = read_number(row->subject + cut, row->subject + row->subject_len);
        if (serial < 0)
            continue; /* nobody of ours asked for it */
        Py_XSETREF(key, PyLong_FromLongLong(serial));
        if (key == NULL)
            goto fail;
        PyObject *found = PyDict_GetItemWithError(pending, key);
        if (found == NULL) {
            if (PyErr_Occurred())
                goto fail;
            continue; /* expired, or a second ack of a message sent again */
        }
        Ack ack;
        int is_future = AckFutureType != NULL && Py_IS_TYPE(found, AckFutureType);
        if (row->header_len || !read_ack(row_data(row), row->data_len, &ack)
            || (!is_future && (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) == 0))) {
            PyObject *index = PyLong_FromSsize_t(i);
            int failed = index == NULL || PyList_Append(others, index) < 0;
            Py_XDECREF(index);
            if (failed)
                goto fail;
            continue;
        }
        Py_XSETREF(flight, Py_NewRef(found));
        if (PyDict_DelItem(pending, key) < 0)
            goto fail;
        acked++;
        duplicates += ack.duplicate;
        if (stream == NULL || stream_len != ack.stream_len
            || memcmp(stream_bytes, ack.stream, (size_t)stream_len) != 0) {
            Py_XSETREF(stream, text(ack.stream, ack.stream_len));
            if (stream == NULL)
                goto fail;
            stream_bytes = ack.stream;
            stream_len = ack.stream_len;
        }
        if (is_future) {
            if (settle_future(flight, args[2], stream, &ack) < 0)
                goto fail;
            continue;
        }
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
        PyObject *domain = ack.domain == NULL ? NULL : text(ack.domain, ack.domain_len);
        if (ack.domain != NULL && domain == NULL)
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
    Py_XDECREF(flight);
    Py_XDECREF(stream);
    return Py_BuildValue("(nnN)", acked, duplicates, others);
fail:
    if (together.batch != NULL) {
        /* What it has not heard of is no longer pending: nobody else would tell it. */
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (tell_batch(&together) < 0)
            PyErr_Clear();
        PyErr_Restore(kind, error, trace);
    }
    Py_XDECREF(key);
    Py_XDECREF(flight);
    Py_XDECREF(stream);
    Py_DECREF(others);
    return NULL;
}

/* Publishing */

static char *put_number(char *place, uint64_t number)
{
    char digits[20];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count)
        *place++ = digits[--count];
    return place;
}

static char *put(char *place, const char *bytes, Py_ssize_t len)
{
    memcpy(place, bytes, (size_t)len);
    return place + len;
}

static char *put_bytes(char *place, PyObject *bytes)
{
    return put(place, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
}

/* A whole publish: prefix, the reply of inbox and serial, the size, data. */
static PyObject *frame(PyObject *prefix, PyObject *inbox, uint64_t serial, PyObject *data)
{
    Py_ssize_t prefix_len = PyBytes_GET_SIZE(prefix), inbox_len = PyBytes_GET_SIZE(inbox);
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    char numbers[48];
    char *end = put_number(numbers, serial);
    *end++ = ' ';
    end = put_number(end, (uint64_t)size);
    *end++ = '\r';
    *end++ = '\n';
    Py_ssize_t middle = end - numbers;
    PyObject *whole = PyBytes_FromStringAndSize(NULL, prefix_len + inbox_len + middle + size + 2);
    if (whole == NULL)
        return NULL;
    char *place = put_bytes(PyBytes_AS_STRING(whole), prefix);
    place = put_bytes(place, inbox);
    place = put(place, numbers, middle);
    place = put_bytes(place, data);
    put(place, "\r\n", 2);
    return whole;
}

PyDoc_STRVAR(frames_doc,
"frames(prefixes, inbox, serial, blocks, datas, start, stop) -> bytes\n\n"
"Whole publishes of the rows from start to stop; serial is that of the first. blocks are their headers, or\n"
"None: they have none.");

static PyObject *frames(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 7 || !PyList_Check(args[0]) || !PyBytes_Check(args[1])
        || (args[3] != Py_None && !PyList_Check(args[3])) || !PyList_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "frames(list, bytes, int, list | None, list, int, int)");
        return NULL;
    }
    uint64_t serial = PyLong_AsUnsignedLongLong(args[2]);
    Py_ssize_t start = PyLong_AsSsize_t(args[5]), stop = PyLong_AsSsize_t(args[6]);
    if (PyErr_Occurred())
        return NULL;
    PyObject *prefixes = args[0], *inbox = args[1], *datas = args[4];
    PyObject *blocks = args[3] == Py_None ? NULL : args[3];
    if (start < 0 || stop < start || stop > PyList_GET_SIZE(prefixes) || stop > PyList_GET_SIZE(datas)
        || (blocks != NULL && stop > PyList_GET_SIZE(blocks))) {
        PyErr_SetString(PyExc_IndexError, "start and stop must be rows of all lists");
        return NULL;
    }
    /* H, three numbers of at most 20 digits, two blanks, two line ends */
    Py_ssize_t size = 0, most = PyBytes_GET_SIZE(inbox) + 1 + 60 + 2 + 4;
    for (Py_ssize_t i = start; i < stop; i++) {
        PyObject *prefix = PyList_GET_ITEM(prefixes, i), *data = PyList_GET_ITEM(datas, i);
        PyObject *block = blocks == NULL ? NULL : PyList_GET_ITEM(blocks, i);
        if (!PyBytes_Check(prefix) || !PyBytes_Check(data) || (block != NULL && !PyBytes_Check(block))) {
            PyErr_SetString(PyExc_TypeError, "prefixes, blocks and datas must be bytes");
            return NULL;
        }
        size += most + PyBytes_GET_SIZE(prefix) + PyBytes_GET_SIZE(data);
        if (block != NULL)
            size += PyBytes_GET_SIZE(block);
    }
    PyObject *whole = PyBytes_FromStringAndSize(NULL, size);
    if (whole == NULL)
        return NULL;
    char *place = PyBytes_AS_STRING(whole);
    for (Py_ssize_t i = start; i < stop; i++) {
        PyObject *block = blocks == NULL ? NULL : PyList_GET_ITEM(blocks, i);
        PyObject *data = PyList_GET_ITEM(datas, i);
        Py_ssize_t total = PyBytes_GET_SIZE(data);
        if (block != NULL)
            *place++ = 'H';
        place = put_bytes(place, PyList_GET_ITEM(prefixes, i));
        place = put_bytes(place, inbox);
        place = put_number(place, serial++);
        *place++ = ' ';
        if (block != NULL) {
            place = put_number(place, (uint64_t)PyBytes_GET_SIZE(block));
            *place++ = ' ';
            total += PyBytes_GET_SIZE(block);
        }
        place = put_number(place, (uint64_t)total);
        place = put(place, "\r\n", 2);
        if (block != NULL)
            place = put_bytes(place, block);
        place = put_bytes(place, data);
        place = put(place, "\r\n", 2);
    }
    _PyBytes_Resize(&whole, place - PyBytes_AS_STRING(whole));
    return whole;
}
