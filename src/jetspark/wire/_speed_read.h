/* Reading messages: the inner loop, and objects made by it. Part of _speed.c. */

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
"where it stopped. make None: pass over them.");

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
    if (make == Py_None) {
        Row passed;
        Before before = {NULL, 0, 0};
        Py_ssize_t after = pos;
        while (after >= 0 && after < total) {
            pos = after;
            after = read_message(buf, pos, total, &wanted, &before, &passed);
        }
        return PyLong_FromSsize_t(after < 0 ? pos : after);
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
