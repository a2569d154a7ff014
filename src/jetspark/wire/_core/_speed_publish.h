/* Publishing: whole commands. Part of _speed.c. */

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

PyDoc_STRVAR(frames_doc,
"frames(prefixes, inbox, serial, blocks, datas, start, stop) -> bytes\n\n"
"Whole publishes of the rows from start to stop; serial is that of the first. blocks are their headers, or\n"
"None: they have none.");

static PyObject *frames(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
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
