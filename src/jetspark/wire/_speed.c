/* The inner loops of the wire, compiled: consecutive messages of one subscription, and nothing else.
 *
 * Both loops stop at the first line that is anything but the next complete, well-formed message of the same
 * subscription; the parser's general loop, in Python, takes over from there. So statuses, errors, limits and
 * everything that is rare have one home, and this file can refuse nothing and lose nothing.
 *
 * Objects: `read_run` calls the route's factory for each message, with the arguments that the Python loop
 * would give it.
 *
 * Columns: a `Rows` notes where subject, reply and payload of each message lie in the received chunk, which
 * it keeps alive. Nothing is copied until `pack` writes the offsets and the data of an Arrow array.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* One message in a chunk; pointers live as long as the chunk does. */
typedef struct {
    const char *subject;
    const char *reply;
    const char *header;
    const char *data;
    uint32_t subject_len;
    uint32_t reply_len;
    uint32_t header_len;
    uint32_t data_len;
} Row;

typedef struct {
    const char *sid;
    Py_ssize_t sid_len;
    Py_ssize_t max_line;
    Py_ssize_t max_message;
    int need_reply; /* a message without a reply stops the loop */
} Wanted;

static const char VERSION_LINE[] = "NATS/1.0";

/* At most ten digits, as the Python parser has it; -1 when it is no size or too large. */
static Py_ssize_t read_size(const char *digits, Py_ssize_t len, Py_ssize_t limit)
{
    if (len < 1 || len > 10)
        return -1;
    int64_t value = 0;
    for (Py_ssize_t i = 0; i < len; i++) {
        unsigned digit = (unsigned char)digits[i] - '0';
        if (digit > 9)
            return -1;
        value = value * 10 + digit;
    }
    return value > (int64_t)limit ? -1 : (Py_ssize_t)value;
}

/* How the line of the last message began, up to its reply: "MSG subject sid ". Most lines begin as the one
 * before them did, and comparing is cheaper than cutting. */
typedef struct {
    const char *start;
    Py_ssize_t len;
    uint32_t subject_len;
} Before;

/* The next message when its line is that of the last one but for reply and size; -1: look closer. */
static Py_ssize_t read_like_before(const char *buf, Py_ssize_t pos, Py_ssize_t total, const Wanted *wanted,
                                   const Before *before, Row *row)
{
    Py_ssize_t window = total - pos;
    if (window > wanted->max_line + 2)
        window = wanted->max_line + 2;
    const char *line = buf + pos;
    if (before->len == 0 || window <= before->len || memcmp(line, before->start, (size_t)before->len) != 0)
        return -1;
    const char *reply = line + before->len, *end = line + window;
    const char *blank = memchr(reply, ' ', (size_t)(end - reply));
    /* Without a reply the blank is one of the payload's. */
    if (blank == NULL || blank == reply || memchr(reply, '\n', (size_t)(blank - reply)) != NULL)
        return -1;
    const char *at = blank + 1;
    int64_t size = 0;
    while (at < end && at - blank <= 10) {
        unsigned digit = (unsigned char)*at - '0';
        if (digit > 9)
            break;
        size = size * 10 + digit;
        at++;
    }
    if (at == blank + 1 || end - at < 2 || at[0] != '\r' || at[1] != '\n' || size > wanted->max_message)
        return -1;
    const char *body = at + 2;
    if (size + 2 > buf + total - body || body[size] != '\r' || body[size + 1] != '\n')
        return -1;
    row->subject = line + 4;
    row->subject_len = before->subject_len;
    row->reply = reply;
    row->reply_len = (uint32_t)(blank - reply);
    row->header = row->data = body;
    row->header_len = 0;
    row->data_len = (uint32_t)size;
    return body + size + 2 - buf;
}

/* Read the message at `pos`. The position behind it, or -1: leave it to the general loop. */
static Py_ssize_t read_message(const char *buf, Py_ssize_t pos, Py_ssize_t total, const Wanted *wanted,
                               Before *before, Row *row)
{
    Py_ssize_t like = read_like_before(buf, pos, total, wanted, before, row);
    if (like >= 0)
        return like;
    Py_ssize_t window = total - pos;
    if (window > wanted->max_line + 2)
        window = wanted->max_line + 2;
    const char *line = buf + pos;
    const char *eol = memchr(line, '\n', (size_t)window);
    if (eol == NULL || eol == line || eol[-1] != '\r')
        return -1;
    const char *end_of_line = eol - 1;
    int has_header;
    const char *word = line;
    if (end_of_line - line > 4 && memcmp(line, "MSG ", 4) == 0) {
        has_header = 0;
        word += 4;
    }
    else if (end_of_line - line > 5 && memcmp(line, "HMSG ", 5) == 0) {
        has_header = 1;
        word += 5;
    }
    else
        return -1;
    /* subject sid [reply] [header size] size, with one blank between them; words may be empty. */
    const char *starts[6], *ends[6];
    int words = 0;
    for (;;) {
        const char *blank = memchr(word, ' ', (size_t)(end_of_line - word));
        if (words == 6)
            return -1;
        starts[words] = word;
        ends[words] = blank == NULL ? end_of_line : blank;
        words++;
        if (blank == NULL)
            break;
        word = blank + 1;
    }
    int fixed = has_header ? 4 : 3;
    int has_reply = words == fixed + 1;
    if (words != fixed && !has_reply)
        return -1;
    if (ends[1] - starts[1] != wanted->sid_len || memcmp(starts[1], wanted->sid, (size_t)wanted->sid_len))
        return -1;
    row->subject = starts[0];
    row->subject_len = (uint32_t)(ends[0] - starts[0]);
    row->reply = starts[2];
    row->reply_len = has_reply ? (uint32_t)(ends[2] - starts[2]) : 0;
    if (wanted->need_reply && row->reply_len == 0)
        return -1;
    Py_ssize_t size = read_size(starts[words - 1], ends[words - 1] - starts[words - 1], wanted->max_message);
    Py_ssize_t header = 0;
    if (has_header) {
        header = read_size(starts[words - 2], ends[words - 2] - starts[words - 2], wanted->max_message);
        if (header < 0)
            return -1;
    }
    const char *body = eol + 1;
    if (size < header || size + 2 > buf + total - body || body[size] != '\r' || body[size + 1] != '\n')
        return -1;
    if (header > 0 && (header < (Py_ssize_t)sizeof(VERSION_LINE) - 1
                       || memcmp(body, VERSION_LINE, sizeof(VERSION_LINE) - 1) != 0))
        return -1;
    row->header = body;
    row->header_len = (uint32_t)header;
    row->data = body + header;
    row->data_len = (uint32_t)(size - header);
    before->len = has_reply && !has_header ? starts[2] - line : 0;
    before->start = line;
    before->subject_len = row->subject_len;
    return body + size + 2 - buf;
}

static PyObject *text(const char *start, Py_ssize_t len)
{
    return PyUnicode_DecodeUTF8(start, len, "surrogateescape");
}

/* Objects */

PyDoc_STRVAR(read_run_doc,
"read_run(buf, pos, sid, make, owner, items, max_line, max_message) -> int\n\n"
"Append make(subject, reply, data, header, owner) to items for each complete message of sid from pos on;\n"
"where it stopped.");

static PyObject *read_run(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 8 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[2]) || !PyList_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "read_run(bytes, int, bytes, make, owner, list, int, int)");
        return NULL;
    }
    const char *buf = PyBytes_AS_STRING(args[0]);
    Py_ssize_t total = PyBytes_GET_SIZE(args[0]);
    Py_ssize_t pos = PyLong_AsSsize_t(args[1]);
    Wanted wanted = {PyBytes_AS_STRING(args[2]), PyBytes_GET_SIZE(args[2]), PyLong_AsSsize_t(args[6]),
                     PyLong_AsSsize_t(args[7]), 0};
    PyObject *make = args[3], *items = args[5];
    if (PyErr_Occurred())
        return NULL;
    if (pos < 0 || pos > total) {
        PyErr_SetString(PyExc_ValueError, "pos is outside of buf");
        return NULL;
    }
    PyObject *subject = NULL; /* most runs have few subjects, mostly one after the other */
    const char *subject_bytes = NULL;
    uint32_t subject_len = 0;
    PyObject *empty = PyUnicode_New(0, 0);
    if (empty == NULL)
        return NULL;
    Row row;
    Before before = {NULL, 0, 0};
    while (pos < total) {
        Py_ssize_t after = read_message(buf, pos, total, &wanted, &before, &row);
        if (after < 0)
            break;
        if (subject == NULL || subject_len != row.subject_len
            || memcmp(subject_bytes, row.subject, row.subject_len) != 0) {
            Py_XSETREF(subject, text(row.subject, row.subject_len));
            subject_bytes = row.subject;
            subject_len = row.subject_len;
        }
        PyObject *reply = row.reply_len ? text(row.reply, row.reply_len) : Py_NewRef(empty);
        PyObject *data = PyBytes_FromStringAndSize(row.data, row.data_len);
        PyObject *header = row.header_len ? PyBytes_FromStringAndSize(row.header, row.header_len)
                                          : Py_NewRef(Py_None);
        PyObject *item = NULL;
        if (subject != NULL && reply != NULL && data != NULL && header != NULL) {
            /* The free place in front lets a bound method put its self there. */
            PyObject *slots[6] = {NULL, subject, reply, data, header, args[4]};
            item = PyObject_Vectorcall(make, slots + 1, 5 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        }
        Py_XDECREF(reply);
        Py_XDECREF(data);
        Py_XDECREF(header);
        if (item == NULL || PyList_Append(items, item) < 0) {
            Py_XDECREF(item);
            Py_XDECREF(subject);
            Py_DECREF(empty);
            return NULL;
        }
        Py_DECREF(item);
        pos = after;
    }
    Py_XDECREF(subject);
    Py_DECREF(empty);
    return PyLong_FromSsize_t(pos);
}

/* Columns */

typedef struct {
    PyObject_HEAD
    PyObject *chunks; /* list of the bytes objects that the rows point into */
    Row *rows;
    Py_ssize_t count;
    Py_ssize_t room;
} Rows;

static PyTypeObject RowsType;

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
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
    Py_XDECREF(self->chunks);
    PyMem_Free(self->rows);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static Py_ssize_t rows_length(Rows *self)
{
    return self->count;
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

PyDoc_STRVAR(rows_read_doc,
"read(buf, pos, sid, headers, max_line, max_message, need_reply) -> int\n\n"
"Note each complete message of sid from pos on; where it stopped: with need_reply, also at a message without\n"
"a reply. headers gets the header blocks by row.");

static PyObject *rows_read(Rows *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 7 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[2]) || !PyDict_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "read(bytes, int, bytes, dict, int, int, bool)");
        return NULL;
    }
    const char *buf = PyBytes_AS_STRING(args[0]);
    Py_ssize_t total = PyBytes_GET_SIZE(args[0]);
    Py_ssize_t pos = PyLong_AsSsize_t(args[1]);
    Wanted wanted = {PyBytes_AS_STRING(args[2]), PyBytes_GET_SIZE(args[2]), PyLong_AsSsize_t(args[4]),
                     PyLong_AsSsize_t(args[5]), PyObject_IsTrue(args[6])};
    if (PyErr_Occurred())
        return NULL;
    if (pos < 0 || pos > total) {
        PyErr_SetString(PyExc_ValueError, "pos is outside of buf");
        return NULL;
    }
    Py_ssize_t had = self->count;
    Before before = {NULL, 0, 0};
    while (pos < total) {
        if (self->count == self->room && rows_reserve(self, 1) < 0)
            return NULL;
        Row *row = &self->rows[self->count];
        Py_ssize_t after = read_message(buf, pos, total, &wanted, &before, row);
        if (after < 0)
            break;
        if (row->header_len) {
            PyObject *key = PyLong_FromSsize_t(self->count);
            PyObject *block = PyBytes_FromStringAndSize(row->header, row->header_len);
            int failed = key == NULL || block == NULL || PyDict_SetItem(args[3], key, block) < 0;
            Py_XDECREF(key);
            Py_XDECREF(block);
            if (failed)
                return NULL;
        }
        self->count++;
        pos = after;
    }
    if (self->count > had && PyList_Append(self->chunks, args[0]) < 0) {
        self->count = had;
        return NULL;
    }
    return PyLong_FromSsize_t(pos);
}

PyDoc_STRVAR(rows_extend_doc, "extend(other)\n\nThe rows of another, behind these.");

static PyObject *rows_extend(Rows *self, PyObject *argument)
{
    if (!PyObject_TypeCheck(argument, &RowsType) || argument == (PyObject *)self) {
        PyErr_SetString(PyExc_TypeError, "extend() takes other Rows");
        return NULL;
    }
    Rows *other = (Rows *)argument;
    if (rows_reserve(self, other->count) < 0)
        return NULL;
    Py_ssize_t end = PyList_GET_SIZE(self->chunks);
    if (PyList_SetSlice(self->chunks, end, end, other->chunks) < 0)
        return NULL;
    if (other->count)
        memcpy(self->rows + self->count, other->rows, (size_t)other->count * sizeof(Row));
    self->count += other->count;
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
    if (count < self->count)
        self->count = count;
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
        *start = row->reply;
        *len = row->reply_len;
        return 0;
    case 2:
        *start = row->data;
        *len = row->data_len;
        return 0;
    }
    PyErr_SetString(PyExc_ValueError, "column must be 0 (subject), 1 (reply) or 2 (data)");
    return -1;
}

PyDoc_STRVAR(rows_cells_doc, "cells(column) -> list[bytes]\n\nA column as objects; 0 subject, 1 reply, 2 data.");

static PyObject *rows_cells(Rows *self, PyObject *argument)
{
    long column = PyLong_AsLong(argument);
    if (column == -1 && PyErr_Occurred())
        return NULL;
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
    return PyBytes_FromStringAndSize(self->rows[index].reply, self->rows[index].reply_len);
}

PyDoc_STRVAR(rows_pack_doc,
"pack(column) -> (offsets, data)\n\nA column as the two buffers of an Arrow binary array (32-bit offsets).");

static PyObject *rows_pack(Rows *self, PyObject *argument)
{
    long column = PyLong_AsLong(argument);
    if (column == -1 && PyErr_Occurred())
        return NULL;
    const char *start = NULL;
    uint32_t len = 0;
    int64_t sum = 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
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

/* A decimal number that fits an int64; -1 when it is not one. */
static int64_t read_number(const char *start, const char *end)
{
    if (start == end || end - start > 18)
        return -1;
    int64_t value = 0;
    for (; start < end; start++) {
        unsigned digit = (unsigned char)*start - '0';
        if (digit > 9)
            return -1;
        value = value * 10 + digit;
    }
    return value;
}

typedef struct {
    int64_t sequence;
    int64_t time; /* microseconds */
    /* How many bytes there are in front of the sequence, in a reply of 9 tokens; otherwise 0. */
    Py_ssize_t front;
} Position;

/* Microseconds of 19 digits, which nanoseconds have these days; -1 when they are no int64. */
static int64_t read_microseconds(const char *digits)
{
    int64_t time = read_number(digits, digits + 16), rest = read_number(digits + 16, digits + 19);
    if (time < 0 || rest < 0 || time > INT64_MAX / 1000
        || (time == INT64_MAX / 1000 && rest > INT64_MAX % 1000))
        return -1;
    return time;
}

/* ADR-15 'JSAck': 9 tokens; or 11 and more, with domain and account behind the first two. */
static int read_position(const char *start, const char *end, Position *position)
{
    const char *dots[12];
    int tokens = 1;
    for (const char *at = start; at < end; at++) {
        if (*at == '.') {
            if (tokens < 12)
                dots[tokens] = at;
            tokens++;
        }
    }
    int first = tokens == 9 ? 5 : 7;
    if (end - start < 8 || memcmp(start, "$JS.ACK.", 8) != 0 || (tokens != 9 && tokens < 11))
        return 0;
    const char *last = first + 3 < tokens ? dots[first + 3] : end;
    position->front = tokens == 9 ? dots[first] + 1 - start : 0;
    position->sequence = read_number(dots[first] + 1, dots[first + 1]);
    int64_t time = read_number(dots[first + 2] + 1, last);
    if (position->sequence < 0)
        return 0;
    if (time >= 0)
        time /= 1000;
    else if (last - (dots[first + 2] + 1) == 19)
        time = read_microseconds(dots[first + 2] + 1);
    position->time = time;
    return time >= 0;
}

static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && (unsigned char)(*at - '0') <= 9)
        at++;
    return at;
}

/* The same for a reply that begins as the one before did: stream, consumer and deliveries are the same, so
 * what follows is "sequence.sequence.nanoseconds.pending". 0: look closer. */
static int read_position_like(const char *start, const char *end, const char *before, Position *position)
{
    Py_ssize_t front = position->front;
    if (front == 0 || end - start <= front || memcmp(start, before, (size_t)front) != 0)
        return 0;
    const char *sequence = start + front, *at = skip_digits(sequence, end);
    const char *dot = at;
    if (at == end || *at != '.')
        return 0;
    at = skip_digits(at + 1, end);
    /* The consumer's sequence; and 19 digits between two dots must follow. */
    if (at == dot + 1 || end - at < 22 || *at != '.' || at[20] != '.')
        return 0;
    const char *nanoseconds = at + 1, *pending = at + 21;
    if (skip_digits(pending, end) != end)
        return 0;
    position->sequence = read_number(sequence, dot);
    position->time = read_microseconds(nanoseconds);
    return position->sequence >= 0 && position->time >= 0;
}

PyDoc_STRVAR(rows_positions_doc,
"positions() -> (sequences, microseconds) | None\n\n"
"Stream sequence and time out of the ack replies, as buffers of int64; None unless all replies have them.");

static PyObject *rows_positions(Rows *self, PyObject *Py_UNUSED(ignored))
{
    Py_ssize_t size = self->count * (Py_ssize_t)sizeof(int64_t);
    PyObject *sequences = PyBytes_FromStringAndSize(NULL, size);
    PyObject *times = PyBytes_FromStringAndSize(NULL, size);
    if (sequences == NULL || times == NULL)
        goto fail;
    char *sequence_at = PyBytes_AS_STRING(sequences), *time_at = PyBytes_AS_STRING(times);
    const char *before = NULL;
    Position position = {0, 0, 0};
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const char *start = self->rows[i].reply, *end = start + self->rows[i].reply_len;
        if (!read_position_like(start, end, before, &position) && !read_position(start, end, &position))
            goto none;
        before = start;
        memcpy(sequence_at, &position.sequence, sizeof position.sequence);
        memcpy(time_at, &position.time, sizeof position.time);
        sequence_at += sizeof position.sequence;
        time_at += sizeof position.time;
    }
    return Py_BuildValue("(NN)", sequences, times);
none:
    Py_DECREF(sequences);
    Py_DECREF(times);
    Py_RETURN_NONE;
fail:
    Py_XDECREF(sequences);
    Py_XDECREF(times);
    return NULL;
}

/* Acks of publishes */

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

static PyObject *names_of_plain_ack, *names_of_full_ack, *name_set_result, *name_done, *name_acked;

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

static PyObject *make_ack(PyObject *kind, PyObject *stream, const Ack *ack)
{
    PyObject *seq = PyLong_FromLongLong(ack->seq);
    if (seq == NULL)
        return NULL;
    PyObject *made = NULL;
    if (ack->domain == NULL && !ack->duplicate) {
        PyObject *values[3] = {NULL, stream, seq};
        made = PyObject_Vectorcall(kind, values + 1, PY_VECTORCALL_ARGUMENTS_OFFSET, names_of_plain_ack);
    }
    else {
        PyObject *domain = ack->domain == NULL ? Py_NewRef(Py_None) : text(ack->domain, ack->domain_len);
        if (domain != NULL) {
            PyObject *values[5] = {NULL, stream, seq, domain, ack->duplicate ? Py_True : Py_False};
            made = PyObject_Vectorcall(kind, values + 1, PY_VECTORCALL_ARGUMENTS_OFFSET, names_of_full_ack);
            Py_DECREF(domain);
        }
    }
    Py_DECREF(seq);
    return made;
}

PyDoc_STRVAR(rows_settle_doc,
"settle(cut, pending, ack_class, batch_class) -> (acked, duplicates, others)\n\n"
"Take each row for the answer to a publish whose serial is its subject from cut on. Those that say no more\n"
"than \"stored\" are taken out of pending: serial -> (future or batch, ...), and the future gets its ack, the\n"
"batch a count (acked_many). Others are the rows that say something else.");

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
        if (row->header_len || !read_ack(row->data, row->data_len, &ack) || !PyTuple_Check(found)
            || PyTuple_GET_SIZE(found) == 0) {
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
        PyObject *made = make_ack(args[2], stream, &ack);
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

PyDoc_STRVAR(rows_size_doc, "size() -> int\n\nBytes of subjects, replies, headers and payloads.");

static PyObject *rows_size(Rows *self, PyObject *Py_UNUSED(ignored))
{
    int64_t sum = 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Row *row = &self->rows[i];
        sum += (int64_t)row->subject_len + row->reply_len + row->header_len + row->data_len;
    }
    return PyLong_FromLongLong(sum);
}

static PyMethodDef rows_methods[] = {
    {"read", (PyCFunction)(void (*)(void))rows_read, METH_FASTCALL, rows_read_doc},
    {"extend", (PyCFunction)rows_extend, METH_O, rows_extend_doc},
    {"truncate", (PyCFunction)rows_truncate, METH_O, rows_truncate_doc},
    {"cells", (PyCFunction)rows_cells, METH_O, rows_cells_doc},
    {"reply", (PyCFunction)rows_reply, METH_O, rows_reply_doc},
    {"pack", (PyCFunction)rows_pack, METH_O, rows_pack_doc},
    {"positions", (PyCFunction)rows_positions, METH_NOARGS, rows_positions_doc},
    {"settle", (PyCFunction)(void (*)(void))rows_settle, METH_FASTCALL, rows_settle_doc},
    {"size", (PyCFunction)rows_size, METH_NOARGS, rows_size_doc},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods rows_as_sequence = {
    .sq_length = (lenfunc)rows_length,
};

static PyTypeObject RowsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jetspark.wire._speed.Rows",
    .tp_basicsize = sizeof(Rows),
    .tp_dealloc = (destructor)rows_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Messages of one subscription, as places in the chunks that they came in.",
    .tp_as_sequence = &rows_as_sequence,
    .tp_methods = rows_methods,
    .tp_new = rows_new,
};

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

typedef struct {
    PyObject_HEAD
    PyObject *inbox;
    PyObject *pending;
    PyObject *future_class;
    PyObject *keywords; /* {"loop": loop} */
} Launcher;

static PyObject *no_arguments, *zero;

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *inbox, *pending, *future_class, *loop;
    if ((kwargs != NULL && PyDict_GET_SIZE(kwargs))
        || !PyArg_ParseTuple(args, "SO!OO", &inbox, &PyDict_Type, &pending, &future_class, &loop)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "Launcher() takes no keyword arguments");
        return NULL;
    }
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->inbox = Py_NewRef(inbox);
    self->pending = Py_NewRef(pending);
    self->future_class = Py_NewRef(future_class);
    self->keywords = Py_BuildValue("{sO}", "loop", loop);
    if (self->keywords == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int launcher_traverse(Launcher *self, visitproc visit, void *arg)
{
    Py_VISIT(self->pending);
    Py_VISIT(self->future_class);
    Py_VISIT(self->keywords);
    return 0;
}

static int launcher_clear(Launcher *self)
{
    Py_CLEAR(self->pending);
    Py_CLEAR(self->future_class);
    Py_CLEAR(self->keywords);
    return 0;
}

static void launcher_dealloc(Launcher *self)
{
    PyObject_GC_UnTrack(self);
    launcher_clear(self);
    Py_CLEAR(self->inbox);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyDoc_STRVAR(launch_doc,
"launch(out, prefix, serial, subject, data) -> future\n\n"
"Append a whole publish to out, and note (future, subject, 0, None) in pending under its serial.");

static PyObject *launcher_launch(Launcher *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyList_Check(args[0]) || !PyBytes_Check(args[1]) || !PyLong_Check(args[2])
        || !PyBytes_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "launch(list, bytes, int, str, bytes)");
        return NULL;
    }
    uint64_t serial = PyLong_AsUnsignedLongLong(args[2]);
    if (serial == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    /* With the same keywords each time: as a vector call it would make a dict of them each time. */
    PyObject *future = PyObject_Call(self->future_class, no_arguments, self->keywords);
    if (future == NULL)
        return NULL;
    PyObject *flight = PyTuple_Pack(4, future, args[3], zero, Py_None);
    PyObject *whole = flight == NULL ? NULL : frame(args[1], self->inbox, serial, args[4]);
    int failed = whole == NULL || PyDict_SetItem(self->pending, args[2], flight) < 0;
    if (!failed && PyList_Append(args[0], whole) < 0) {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (PyDict_DelItem(self->pending, args[2]) < 0)
            PyErr_Clear();
        PyErr_Restore(kind, error, trace);
        failed = 1;
    }
    Py_XDECREF(flight);
    Py_XDECREF(whole);
    if (failed)
        Py_CLEAR(future);
    return future;
}

static PyMethodDef launcher_methods[] = {
    {"launch", (PyCFunction)(void (*)(void))launcher_launch, METH_FASTCALL, launch_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jetspark.wire._speed.Launcher",
    .tp_basicsize = sizeof(Launcher),
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_traverse = (traverseproc)launcher_traverse,
    .tp_clear = (inquiry)launcher_clear,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Launcher(inbox, pending, future_class, loop): sends messages whose acks come to inbox + serial.",
    .tp_methods = launcher_methods,
    .tp_new = launcher_new,
};

static PyMethodDef functions[] = {
    {"frames", (PyCFunction)(void (*)(void))frames, METH_FASTCALL, frames_doc},
    {"read_run", (PyCFunction)(void (*)(void))read_run, METH_FASTCALL, read_run_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "jetspark.wire._speed",
    .m_doc = "The inner loops of jetspark.wire, compiled. Optional: without it they run in Python.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__speed(void)
{
    if (PyType_Ready(&RowsType) < 0 || PyType_Ready(&LauncherType) < 0)
        return NULL;
    names_of_plain_ack = Py_BuildValue("(ss)", "stream", "seq");
    names_of_full_ack = Py_BuildValue("(ssss)", "stream", "seq", "domain", "duplicate");
    no_arguments = PyTuple_New(0);
    name_set_result = PyUnicode_InternFromString("set_result");
    name_done = PyUnicode_InternFromString("done");
    name_acked = PyUnicode_InternFromString("acked_many");
    zero = PyLong_FromLong(0);
    if (names_of_plain_ack == NULL || names_of_full_ack == NULL || no_arguments == NULL
        || name_set_result == NULL || name_done == NULL || name_acked == NULL || zero == NULL)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddObjectRef(module, "Rows", (PyObject *)&RowsType) < 0
        || PyModule_AddObjectRef(module, "Launcher", (PyObject *)&LauncherType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
