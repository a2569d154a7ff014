/* Settling: the answers to publishes, and the table of what has none so far. Part of _speed.c. */

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
"settle(cut, pending, ack_class, batch_class, launcher) -> (acked, duplicates, others)\n\n"
"Take each row for the answer to a publish whose serial is its subject from cut on. Those that say no more\n"
"than \"stored\" are taken out of pending: serial -> AckFuture, Group or (future or batch, ...). A future gets\n"
"its ack, a batch a count (acked_many), a group both when it is complete. Others are the rows that say\n"
"something else.");

static PyObject *rows_settle(Rows *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyDict_Check(args[1]) || !PyType_Check(args[2]) || !PyType_Check(args[3])
        || (args[4] != Py_None && !Py_IS_TYPE(args[4], &LauncherType))) {
        PyErr_SetString(PyExc_TypeError, "settle(int, dict, type, type, Launcher | None)");
        return NULL;
    }
    Launcher *launcher = args[4] == Py_None ? NULL : (Launcher *)args[4];
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
    for (Py_ssize_t i = 0;; i++) {
        /* Here, because it may run code: the last one must be gone before anybody could look at it through a
         * weak reference, and pending must not change between the look-up and the removal. */
        Py_CLEAR(flight);
        if (i >= self->count)
            break;
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
            /* Expired, or a second answer: of a message sent again, of the next leader, or of a second stream. */
            if (launcher != NULL) {
                Ack second;
                int plain = !row->header_len && read_ack(row_data(row), row->data_len, &second);
                if (!plain || !second.duplicate)
                    launcher_stray(launcher, (uint64_t)serial, plain ? second.seq : 0);
            }
            continue;
        }
        Ack ack;
        int is_future = AckFutureType != NULL && Py_IS_TYPE(found, AckFutureType);
        int is_group = Py_IS_TYPE(found, &GroupType) && launcher != NULL;
        int plain = !row->header_len && read_ack(row_data(row), row->data_len, &ack)
                    && (is_future || is_group || (PyTuple_Check(found) && PyTuple_GET_SIZE(found) > 0));
        if (plain && (stream == NULL || stream_len != ack.stream_len
                      || memcmp(stream_bytes, ack.stream, (size_t)stream_len) != 0)) {
            Py_XSETREF(stream, text(ack.stream, ack.stream_len));
            if (stream == NULL)
                goto fail;
            stream_bytes = ack.stream;
            stream_len = ack.stream_len;
        }
        if (plain && is_group) {
            Group *group = (Group *)found;
            if (group->serial <= launcher->doubted)
                group->left = 1;
            int noted = group->left ? ODD : group_note(group, stream, &ack);
            if (noted < 0)
                goto fail;
            if (noted == SEEN || (noted == NOTED && group->acked < group->count))
                continue;
            plain = noted == NOTED;
        }
        if (!plain) {
            if (is_group)
                ((Group *)found)->left = 1;
            PyObject *index = PyLong_FromSsize_t(i);
            int failed = index == NULL || PyList_Append(others, index) < 0;
            Py_XDECREF(index);
            if (failed)
                goto fail;
            continue;
        }
        /* What may fail comes before it is taken out of pending, where else it would be told of its failure. */
        PyObject *domain = NULL;
        if (is_future && ack.domain != NULL && (domain = text(ack.domain, ack.domain_len)) == NULL)
            goto fail;
        flight = Py_NewRef(found);
        if (PyDict_DelItem(pending, key) < 0) {
            Py_XDECREF(domain);
            goto fail;
        }
        if (is_group) {
            Group *group = (Group *)flight;
            acked += group->count;
            launcher->grouped -= group->count - 1;
            if (group_end(group, args[2]) < 0)
                goto fail;
            continue;
        }
        acked++;
        duplicates += ack.duplicate;
        if (is_future) {
            int failed = settle_future(flight, args[2], stream, domain, ack.seq, ack.duplicate);
            Py_XDECREF(domain);
            if (failed || (launcher != NULL && launcher_heard(launcher, (uint64_t)serial, stream, flight, &ack) < 0))
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
