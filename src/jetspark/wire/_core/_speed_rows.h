/* Columns: where a run's messages lie in the received chunks, and Arrow buffers of them. Part of _speed.c. */

/* Arrow's C data interface, from its specification. */
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
#endif

typedef struct {
    PyObject_HEAD
    PyObject *chunks; /* list of the bytes objects that the rows point into */
    Row *rows;
    Py_ssize_t count;
    Py_ssize_t room;
    int64_t size; /* bytes of subjects, replies, headers and payloads */
    int subjects_differ; /* not all rows have the subject of the first one */
    Py_ssize_t need; /* size of the incomplete message at which `read` stopped; 0: there is none */
    int busy; /* the rows are being read, see `changeable` */
    struct ArrowArray exported; /* until it is taken over; see _speed_arrow.h */
} Rows;

static PyTypeObject RowsType;

/* The largest number of rows to reserve at once. */
#define MOST_AHEAD 4096

static PyObject *rows_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Rows *self = (Rows *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->chunks = PyList_New(0);
    if (self->chunks == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void rows_dealloc(Rows *self)
{
    if (self->exported.release != NULL)
        self->exported.release(&self->exported);
    Py_XDECREF(self->chunks);
    PyMem_Free(self->rows);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Code that makes objects of the rows may run arbitrary code in between, at least in the garbage collector.
 * Meanwhile it counts itself in `busy`, and attempts to change the rows are refused. */
static int changeable(const Rows *self)
{
    if (!self->busy)
        return 1;
    PyErr_SetString(PyExc_RuntimeError, "the rows can't change while they are read");
    return 0;
}

static Py_ssize_t rows_length(Rows *self)
{
    return self->count;
}

static int same_subject(const Row *one, const Row *other)
{
    return one->subject_len == other->subject_len
           && memcmp(one->subject, other->subject, one->subject_len) == 0;
}

static int rows_reserve(Rows *self, Py_ssize_t more)
{
    Py_ssize_t wanted = self->count + more;
    if (wanted <= self->room)
        return 0;
    Py_ssize_t room = self->room + self->room / 2 + 16;
    if (room < wanted)
        room = wanted;
    Row *rows = PyMem_Realloc(self->rows, (size_t)room * sizeof(Row));
    if (rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->rows = rows;
    self->room = room;
    return 0;
}

/* Record the messages from the span's `pos` on, which lie in `buf`, and move `pos` to where they end. */
static int note_rows(Rows *self, Span *span, PyObject *buf, PyObject *headers)
{
    Py_ssize_t had = self->count;
    int64_t size = self->size;
    while (span->pos < span->total) {
        /* Reserve for as many as fit if all are like the first, but not too many if that one is tiny. */
        if (self->count == self->room) {
            Py_ssize_t more = self->count == had ? 1 : (span->total - span->pos) / row_length(&self->rows[had]);
            if (rows_reserve(self, more < MOST_AHEAD ? more + 1 : MOST_AHEAD) < 0)
                goto fail;
        }
        Row *row = &self->rows[self->count];
        Py_ssize_t after = read_message(span, row);
        if (after < 0)
            break;
        if (row->header_len) {
            PyObject *key = PyLong_FromSsize_t(self->count);
            PyObject *block = PyBytes_FromStringAndSize(row_header(row), row->header_len);
            int failed = key == NULL || block == NULL || PyDict_SetItem(headers, key, block) < 0;
            Py_XDECREF(key);
            Py_XDECREF(block);
            if (failed)
                goto fail;
        }
        if (!self->subjects_differ && !span->like && !same_subject(row, self->rows))
            self->subjects_differ = 1;
        self->size += row_size(row);
        self->count++;
        span->pos = after;
    }
    if (self->count > had && PyList_Append(self->chunks, buf) < 0)
        goto fail;
    self->need = span->need;
    return 0;
fail:
    /* Otherwise the rows would point into a chunk that is not kept alive. */
    self->count = had;
    self->size = size;
    return -1;
}

static int wants_replies(Span *span, PyObject *need_reply)
{
    int wanted = PyObject_IsTrue(need_reply);
    /* Messages with replies are a consumer's. */
    span->need_reply = span->positions = wanted;
    return wanted < 0 ? -1 : 0;
}

PyDoc_STRVAR(rows_read_doc,
"read(buf, pos, sid, headers, max_line, max_message, need_reply) -> int\n\n"
"Note each complete message of sid from pos on; where it stopped: with need_reply, also at a message without\n"
"a reply. headers gets the header blocks by row. Afterwards need has the size of the message there in all if\n"
"only its end is missing, otherwise 0.");

static PyObject *rows_read(Rows *self, PyObject *const *args, Py_ssize_t nargs)
{
    Span span;
    if (nargs != 7 || !PyDict_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "read(bytes, int, bytes, dict, int, int, bool)");
        return NULL;
    }
    if (span_of(args[0], PyLong_AsSsize_t(args[1]), args[2], args[4], args[5], &span) < 0
        || wants_replies(&span, args[6]) < 0 || !changeable(self))
        return NULL;
    self->need = 0;
    if (note_rows(self, &span, args[0], args[3]) < 0)
        return NULL;
    return PyLong_FromSsize_t(span.pos);
}

/* A message of `need` bytes, joined from the held pieces and the front of `buf`, and how much of `buf` it
 * took. None if it is still incomplete. */
static PyObject *completed(PyObject *held, Py_ssize_t need, PyObject *buf, Py_ssize_t *used)
{
    Py_ssize_t lacking = need;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(held); i++) {
        PyObject *piece = PyList_GET_ITEM(held, i);
        /* The length of any other kind would be whatever its own code returns. */
        if (!PyBytes_CheckExact(piece) && !PyByteArray_CheckExact(piece) && !PyMemoryView_Check(piece)) {
            PyErr_SetString(PyExc_TypeError, "what is held must be bytes");
            return NULL;
        }
        Py_ssize_t len = PyObject_Size(piece);
        if (len < 0)
            return NULL;
        lacking -= len;
    }
    if (lacking <= 0 || lacking > PyBytes_GET_SIZE(buf))
        Py_RETURN_NONE;
    PyObject *message = PyBytes_FromStringAndSize(NULL, need);
    if (message == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(message), *end = to + need;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(held); i++) {
        Py_buffer piece;
        if (PyObject_GetBuffer(PyList_GET_ITEM(held, i), &piece, PyBUF_SIMPLE) < 0) {
            Py_DECREF(message);
            return NULL;
        }
        if (piece.len > end - to - lacking) { /* its items are not bytes */
            PyBuffer_Release(&piece);
            Py_DECREF(message);
            PyErr_SetString(PyExc_TypeError, "what is held must be bytes");
            return NULL;
        }
        memcpy(to, piece.buf, (size_t)piece.len);
        to += piece.len;
        PyBuffer_Release(&piece);
    }
    memcpy(to, PyBytes_AS_STRING(buf), (size_t)lacking);
    *used = lacking;
    return message;
}

PyDoc_STRVAR(rows_resume_doc,
"resume(held, need, buf, sid, headers, max_line, max_message, need_reply) -> int\n\n"
"Note the message of need bytes whose beginning is held, a list of pieces (none when it is empty), and those\n"
"behind it in buf, as read does. Where it stopped in buf; 0: leave all of it to the general loop.");

static PyObject *rows_resume(Rows *self, PyObject *const *args, Py_ssize_t nargs)
{
    Span span;
    if (nargs != 8 || !PyList_Check(args[0]) || !PyBytes_Check(args[2]) || !PyDict_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "resume(list, int, bytes, bytes, dict, int, int, bool)");
        return NULL;
    }
    Py_ssize_t need = PyLong_AsSsize_t(args[1]), used = 0;
    if (need == -1 && PyErr_Occurred())
        return NULL;
    if (!changeable(self))
        return NULL;
    Before before = {.len = 0};
    self->need = 0;
    if (PyList_GET_SIZE(args[0])) {
        PyObject *message = completed(args[0], need, args[2], &used);
        if (message == NULL || message == Py_None) {
            Py_XDECREF(message);
            return message == NULL ? NULL : PyLong_FromLong(0);
        }
        int failed = span_of(message, 0, args[3], args[5], args[6], &span) < 0
                     || wants_replies(&span, args[7]) < 0 || note_rows(self, &span, message, args[4]) < 0;
        Py_DECREF(message); /* if it has a row, it is one of our chunks */
        if (failed)
            return NULL;
        if (span.pos < need)
            return PyLong_FromLong(0);
        before = span.before;
    }
    if (span_of(args[2], used, args[3], args[5], args[6], &span) < 0 || wants_replies(&span, args[7]) < 0)
        return NULL;
    span.before = before;
    if (note_rows(self, &span, args[2], args[4]) < 0)
        return NULL;
    return PyLong_FromSsize_t(span.pos);
}

PyDoc_STRVAR(rows_extend_doc, "extend(other)\n\nThe rows of another, behind these.");

static PyObject *rows_extend(Rows *self, PyObject *argument)
{
    if (!PyObject_TypeCheck(argument, &RowsType) || argument == (PyObject *)self) {
        PyErr_SetString(PyExc_TypeError, "extend() takes other Rows");
        return NULL;
    }
    Rows *other = (Rows *)argument;
    if (!changeable(self) || rows_reserve(self, other->count) < 0)
        return NULL;
    Py_ssize_t end = PyList_GET_SIZE(self->chunks);
    if (PyList_SetSlice(self->chunks, end, end, other->chunks) < 0)
        return NULL;
    if (other->subjects_differ
        || (self->count && other->count && !same_subject(self->rows, other->rows)))
        self->subjects_differ = 1;
    if (other->count)
        memcpy(self->rows + self->count, other->rows, (size_t)other->count * sizeof(Row));
    self->count += other->count;
    self->size += other->size;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(rows_truncate_doc, "truncate(count)\n\nKeep the first rows only.");

static PyObject *rows_truncate(Rows *self, PyObject *argument)
{
    Py_ssize_t count = PyLong_AsSsize_t(argument);
    if (count == -1 && PyErr_Occurred())
        return NULL;
    if (count < 0) {
        PyErr_SetString(PyExc_ValueError, "count must not be negative");
        return NULL;
    }
    if (!changeable(self))
        return NULL;
    while (self->count > count)
        self->size -= row_size(&self->rows[--self->count]);
    Py_RETURN_NONE;
}

/* Columns by number: subject, reply, data. */
static int cell(const Row *row, long column, const char **start, uint32_t *len)
{
    switch (column) {
    case 0:
        *start = row->subject;
        *len = row->subject_len;
        return 0;
    case 1:
        *start = row_reply(row);
        *len = row->reply_len;
        return 0;
    case 2:
        *start = row_data(row);
        *len = row->data_len;
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "column must be 0 (subject), 1 (reply) or 2 (data)");
    return -1;
}

PyDoc_STRVAR(rows_cells_doc, "cells(column) -> list[bytes]\n\nA column as objects; 0 subject, 1 reply, 2 data.");

static PyObject *cells_of(Rows *self, long column)
{
    PyObject *cells = PyList_New(self->count);
    if (cells == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const char *start;
        uint32_t len;
        PyObject *value = cell(&self->rows[i], column, &start, &len) < 0
                              ? NULL
                              : PyBytes_FromStringAndSize(start, len);
        if (value == NULL) {
            Py_DECREF(cells);
            return NULL;
        }
        PyList_SET_ITEM(cells, i, value);
    }
    return cells;
}

static PyObject *rows_cells(Rows *self, PyObject *argument)
{
    long column = PyLong_AsLong(argument);
    if (column == -1 && PyErr_Occurred())
        return NULL;
    self->busy++;
    PyObject *cells = cells_of(self, column);
    self->busy--;
    return cells;
}

PyDoc_STRVAR(rows_reply_doc, "reply(row) -> bytes\n\nThe reply of one row; negative counts from the end.");

static PyObject *rows_reply(Rows *self, PyObject *argument)
{
    Py_ssize_t index = PyLong_AsSsize_t(argument);
    if (index == -1 && PyErr_Occurred())
        return NULL;
    if (index < 0)
        index += self->count;
    if (index < 0 || index >= self->count) {
        PyErr_SetString(PyExc_IndexError, "no such row");
        return NULL;
    }
    return PyBytes_FromStringAndSize(row_reply(&self->rows[index]), self->rows[index].reply_len);
}

PyDoc_STRVAR(rows_pack_doc,
"pack(column) -> (offsets, data)\n\nA column as the two buffers of an Arrow binary array (32-bit offsets).");

/* `count` times the same cell, without reading the rows, which may have left the caches by now. */
static void repeat_cell(char *place, char *offset, const char *cell, uint32_t len, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i <= count; i++, offset += sizeof(int32_t)) {
        int32_t at = (int32_t)(i * len);
        memcpy(offset, &at, sizeof at);
    }
    size_t whole = (size_t)count * len, done = len;
    if (whole == 0)
        return;
    memcpy(place, cell, len);
    while (done < whole) {
        size_t part = done < whole - done ? done : whole - done;
        memcpy(place + done, place, part);
        done += part;
    }
}

static PyObject *pack_column(Rows *self, long column)
{
    const char *start = NULL;
    uint32_t len = 0;
    int64_t sum = 0;
    int repeated = column == 0 && self->count > 0 && !self->subjects_differ;
    if (repeated) {
        cell(&self->rows[0], column, &start, &len);
        sum = (int64_t)len * self->count;
    }
    for (Py_ssize_t i = 0; i < self->count && !repeated; i++) {
        if (cell(&self->rows[i], column, &start, &len) < 0)
            return NULL;
        sum += len;
    }
    if (sum > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "more than 2 GiB in one Arrow array");
        return NULL;
    }
    PyObject *offsets = PyBytes_FromStringAndSize(NULL, (self->count + 1) * (Py_ssize_t)sizeof(int32_t));
    PyObject *data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sum);
    if (offsets == NULL || data == NULL) {
        Py_XDECREF(offsets);
        Py_XDECREF(data);
        return NULL;
    }
    char *place = PyBytes_AS_STRING(data);
    char *offset = PyBytes_AS_STRING(offsets);
    if (repeated) {
        repeat_cell(place, offset, start, len, self->count);
        return Py_BuildValue("(NN)", offsets, data);
    }
    int32_t at = 0;
    memcpy(offset, &at, sizeof at);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        cell(&self->rows[i], column, &start, &len);
        memcpy(place + at, start, len);
        at += (int32_t)len;
        offset += sizeof at;
        memcpy(offset, &at, sizeof at);
    }
    return Py_BuildValue("(NN)", offsets, data);
}

static PyObject *rows_pack(Rows *self, PyObject *argument)
{
    long column = PyLong_AsLong(argument);
    if (column == -1 && PyErr_Occurred())
        return NULL;
    self->busy++;
    PyObject *packed = pack_column(self, column);
    self->busy--;
    return packed;
}

PyDoc_STRVAR(rows_views_doc,
"views() -> (views, chunks)\n\n"
"The payloads as the buffers of an Arrow binary_view array: nothing is copied but the shortest of them.");

static PyObject *views_of(Rows *self)
{
    PyObject *views = PyBytes_FromStringAndSize(NULL, self->count * 16);
    PyObject *chunks = PyList_GetSlice(self->chunks, 0, PyList_GET_SIZE(self->chunks));
    if (views == NULL || chunks == NULL)
        goto fail;
    char *view = PyBytes_AS_STRING(views);
    int32_t number = 0; /* the order of the rows is that of the chunks */
    for (Py_ssize_t i = 0; i < self->count; i++, view += 16) {
        const char *data = row_data(&self->rows[i]);
        int32_t len = (int32_t)self->rows[i].data_len;
        memset(view, 0, 16);
        memcpy(view, &len, 4);
        if (len <= 12) {
            memcpy(view + 4, data, (size_t)len);
            continue;
        }
        for (;;) {
            if (number == PyList_GET_SIZE(chunks)) {
                PyErr_SetString(PyExc_RuntimeError, "a row lies in no chunk");
                goto fail;
            }
            PyObject *chunk = PyList_GET_ITEM(chunks, number);
            if (data >= PyBytes_AS_STRING(chunk) && data < PyBytes_AS_STRING(chunk) + PyBytes_GET_SIZE(chunk))
                break;
            number++;
        }
        Py_ssize_t place = data - PyBytes_AS_STRING(PyList_GET_ITEM(chunks, number));
        if (place > INT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "more than 2 GiB in one chunk");
            goto fail;
        }
        int32_t offset = (int32_t)place;
        memcpy(view + 4, data, 4);
        memcpy(view + 8, &number, 4);
        memcpy(view + 12, &offset, 4);
    }
    return Py_BuildValue("(NN)", views, chunks);
fail:
    Py_XDECREF(views);
    Py_XDECREF(chunks);
    return NULL;
}

static PyObject *rows_views(Rows *self, PyObject *Py_UNUSED(ignored))
{
    self->busy++;
    PyObject *views = views_of(self);
    self->busy--;
    return views;
}

PyDoc_STRVAR(rows_positions_doc,
"positions() -> (sequences, microseconds) | None\n\n"
"Stream sequence and time out of the ack replies, as buffers of int64; None unless all replies have them.");

static PyObject *positions_of(Rows *self)
{
    Py_ssize_t size = self->count * (Py_ssize_t)sizeof(int64_t);
    PyObject *sequences = PyBytes_FromStringAndSize(NULL, size);
    PyObject *times = PyBytes_FromStringAndSize(NULL, size);
    if (sequences == NULL || times == NULL) {
        Py_XDECREF(sequences);
        Py_XDECREF(times);
        return NULL;
    }
    char *sequence_at = PyBytes_AS_STRING(sequences), *time_at = PyBytes_AS_STRING(times);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Position *position = &self->rows[i].position;
        if (position->time < 0) {
            Py_DECREF(sequences);
            Py_DECREF(times);
            Py_RETURN_NONE;
        }
        memcpy(sequence_at, &position->sequence, sizeof(int64_t));
        memcpy(time_at, &position->time, sizeof(int64_t));
        sequence_at += sizeof(int64_t);
        time_at += sizeof(int64_t);
    }
    return Py_BuildValue("(NN)", sequences, times);
}

static PyObject *rows_positions(Rows *self, PyObject *Py_UNUSED(ignored))
{
    self->busy++;
    PyObject *positions = positions_of(self);
    self->busy--;
    return positions;
}

PyDoc_STRVAR(rows_size_doc, "size() -> int\n\nBytes of subjects, replies, headers and payloads.");

static PyObject *rows_size(Rows *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(self->size);
}
