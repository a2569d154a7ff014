/* Reading messages: the inner loop, and the objects that it makes. Part of _speed.c. */

/* One message in a chunk; valid as long as the chunk is. */
typedef struct {
    const char *subject;
    uint32_t reply_at; /* offset from the subject, like body_at */
    uint32_t body_at;
    uint32_t subject_len;
    uint32_t reply_len;
    uint32_t header_len;
    uint32_t data_len;
    Position position;
} Row;

static inline const char *row_reply(const Row *row)
{
    return row->subject + row->reply_at;
}

static inline const char *row_header(const Row *row)
{
    return row->subject + row->body_at;
}

static inline const char *row_data(const Row *row)
{
    return row_header(row) + row->header_len;
}

/* Size as the server counts it. */
static inline int64_t row_size(const Row *row)
{
    return (int64_t)row->subject_len + row->reply_len + row->header_len + row->data_len;
}

/* Minimum size on the wire. */
static inline Py_ssize_t row_length(const Row *row)
{
    return (Py_ssize_t)row->body_at + row->header_len + row->data_len + 6;
}

/* How the line of the last message began: "MSG subject sid ", and the front of an ack reply. Most lines begin
 * like the previous one, and comparing is cheaper than splitting. */
typedef struct {
    const char *line;
    Py_ssize_t len;      /* 0: unknown */
    Py_ssize_t reply_at; /* where the reply begins */
    Py_ssize_t front;    /* length of the reply's front; 0: it has none that the next may share */
    uint32_t subject_len;
} Before;

/* The state of the loop in a chunk. */
typedef struct {
    const char *buf;
    Py_ssize_t total;
    Py_ssize_t pos;
    const char *sid;
    Py_ssize_t sid_len;
    Py_ssize_t max_line;
    Py_ssize_t max_message;
    int need_reply; /* a message without a reply stops the loop */
    int positions;  /* read the ack replies */
    int like;       /* the last message had the same subject as the one before */
    Py_ssize_t need; /* total size of the message at `pos` if it is valid so far but incomplete */
    Before before;
} Span;

/* Rows keep sizes in 32 bits, and Arrow uses signed ones. */
#define MOST_BYTES INT32_MAX

/* A limit set by the caller; -1 with an error set if this code can't observe it. */
static Py_ssize_t limit_of(PyObject *number, const char *name)
{
    Py_ssize_t limit = PyLong_AsSsize_t(number);
    if (limit == -1 && PyErr_Occurred())
        return -1;
    if (limit < 0 || limit > MOST_BYTES - 2) {
        PyErr_Format(PyExc_ValueError, "%s must be from 0 to %zd", name, (Py_ssize_t)MOST_BYTES - 2);
        return -1;
    }
    return limit;
}

static int span_of(PyObject *buf, Py_ssize_t pos, PyObject *sid, PyObject *max_line, PyObject *max_message,
                   Span *span)
{
    if (!PyBytes_Check(buf) || !PyBytes_Check(sid)) {
        PyErr_SetString(PyExc_TypeError, "buf and sid must be bytes");
        return -1;
    }
    if (pos == -1 && PyErr_Occurred())
        return -1;
    *span = (Span){.buf = PyBytes_AS_STRING(buf), .total = PyBytes_GET_SIZE(buf), .pos = pos,
                   .sid = PyBytes_AS_STRING(sid), .sid_len = PyBytes_GET_SIZE(sid)};
    if ((span->max_line = limit_of(max_line, "max_line")) < 0
        || (span->max_message = limit_of(max_message, "max_message")) < 0)
        return -1;
    if (span->pos < 0 || span->pos > span->total) {
        PyErr_SetString(PyExc_ValueError, "pos is outside of buf");
        return -1;
    }
    return 0;
}

static const char VERSION_LINE[] = "NATS/1.0";

/* At most ten digits, as in the Python parser; -1 if it is not a size or too large. */
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

/* How much of the line at `pos` may be examined. */
static Py_ssize_t window_of(const Span *span)
{
    Py_ssize_t window = span->total - span->pos;
    return window > span->max_line + 2 ? span->max_line + 2 : window;
}

/* The next message if its line differs from the last one only in the numbers; -1: look closer. */
static Py_ssize_t read_like_before(const Span *span, Row *row)
{
    const Before *before = &span->before;
    Py_ssize_t window = window_of(span);
    const char *line = span->buf + span->pos;
    if (before->len == 0 || window <= before->len || memcmp(line, before->line, (size_t)before->len) != 0)
        return -1;
    const char *reply = line + before->reply_at, *end = line + window, *blank;
    if (before->front) {
        blank = read_rest(reply + before->front, end, &row->position);
        if (blank == NULL || blank == end || *blank != ' ')
            return -1;
    }
    else {
        blank = memchr(reply, ' ', (size_t)(end - reply));
        /* Without a reply, the blank found is in the payload. */
        if (blank == NULL || blank == reply || memchr(reply, '\n', (size_t)(blank - reply)) != NULL)
            return -1;
        row->position.time = -1;
        if (span->positions)
            read_position(reply, blank, &row->position);
    }
    const char *at = blank + 1;
    int64_t size = 0;
    while (at < end && at - blank <= 10) {
        unsigned digit = (unsigned char)*at - '0';
        if (digit > 9)
            break;
        size = size * 10 + digit;
        at++;
    }
    if (at == blank + 1 || end - at < 2 || at[0] != '\r' || at[1] != '\n' || size > span->max_message)
        return -1;
    const char *body = at + 2;
    if (size + 2 > span->buf + span->total - body || body[size] != '\r' || body[size + 1] != '\n')
        return -1;
    row->subject = line + 4;
    row->subject_len = before->subject_len;
    row->reply_at = (uint32_t)(reply - row->subject);
    row->reply_len = (uint32_t)(blank - reply);
    row->body_at = (uint32_t)(body - row->subject);
    row->header_len = 0;
    row->data_len = (uint32_t)size;
    return body + size + 2 - span->buf;
}

/* Read the position in a row's reply; returns the length of its front, which the last line may share. */
static Py_ssize_t read_reply(const Span *span, Row *row)
{
    const Before *before = &span->before;
    row->position.time = -1;
    if (!span->positions || row->reply_len == 0)
        return 0;
    const char *reply = row_reply(row), *end = reply + row->reply_len;
    if (before->front && end - reply > before->front
        && memcmp(reply, before->line + before->reply_at, (size_t)before->front) == 0
        && read_rest(reply + before->front, end, &row->position) == end)
        return before->front;
    return read_position(reply, end, &row->position);
}

/* Read the message at the span's `pos`. Returns the position after it; -1: leave it to the general loop. */
static Py_ssize_t read_message(Span *span, Row *row)
{
    Py_ssize_t after = read_like_before(span, row);
    span->like = after >= 0;
    if (span->like)
        return after;
    const char *line = span->buf + span->pos;
    const char *eol = memchr(line, '\n', (size_t)window_of(span));
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
    /* subject sid [reply] [header size] size, separated by single blanks; words may be empty. */
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
    if (ends[1] - starts[1] != span->sid_len || memcmp(starts[1], span->sid, (size_t)span->sid_len))
        return -1;
    Py_ssize_t size = read_size(starts[words - 1], ends[words - 1] - starts[words - 1], span->max_message);
    Py_ssize_t header = 0;
    if (has_header) {
        header = read_size(starts[words - 2], ends[words - 2] - starts[words - 2], span->max_message);
        if (header < 0)
            return -1;
    }
    const char *body = eol + 1;
    if (size < header)
        return -1;
    if (size + 2 > span->buf + span->total - body) {
        span->need = body + size + 2 - line;
        return -1;
    }
    if (body[size] != '\r' || body[size + 1] != '\n')
        return -1;
    if (header > 0 && (header < (Py_ssize_t)sizeof(VERSION_LINE) - 1
                       || memcmp(body, VERSION_LINE, sizeof(VERSION_LINE) - 1) != 0))
        return -1;
    row->subject = starts[0];
    row->subject_len = (uint32_t)(ends[0] - starts[0]);
    row->reply_at = (uint32_t)(starts[2] - starts[0]);
    row->reply_len = has_reply ? (uint32_t)(ends[2] - starts[2]) : 0;
    if (span->need_reply && row->reply_len == 0)
        return -1;
    row->body_at = (uint32_t)(body - starts[0]);
    row->header_len = (uint32_t)header;
    row->data_len = (uint32_t)(size - header);
    Py_ssize_t front = read_reply(span, row), reply_at = starts[2] - line;
    span->before = (Before){line, has_reply && !has_header ? reply_at + front : 0, reply_at, front,
                            row->subject_len};
    return body + size + 2 - span->buf;
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

static PyObject *read_run(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Span span;
    if (nargs != 8 || !PyList_Check(args[5])) {
        PyErr_SetString(PyExc_TypeError, "read_run(bytes, int, bytes, make, owner, list, int, int)");
        return NULL;
    }
    if (span_of(args[0], PyLong_AsSsize_t(args[1]), args[2], args[6], args[7], &span) < 0)
        return NULL;
    PyObject *make = args[3], *items = args[5];
    Row row;
    if (make == Py_None) {
        Py_ssize_t after = span.pos;
        while (after >= 0 && after < span.total) {
            span.pos = after;
            after = read_message(&span, &row);
        }
        return PyLong_FromSsize_t(after < 0 ? span.pos : after);
    }
    PyObject *subject = NULL; /* most runs have few subjects, mostly equal ones in a row */
    const char *subject_bytes = NULL;
    uint32_t subject_len = 0;
    PyObject *empty = PyUnicode_New(0, 0);
    if (empty == NULL)
        return NULL;
    while (span.pos < span.total) {
        Py_ssize_t after = read_message(&span, &row);
        if (after < 0)
            break;
        if (subject == NULL || subject_len != row.subject_len
            || memcmp(subject_bytes, row.subject, row.subject_len) != 0) {
            Py_XSETREF(subject, text(row.subject, row.subject_len));
            subject_bytes = row.subject;
            subject_len = row.subject_len;
        }
        PyObject *reply = row.reply_len ? text(row_reply(&row), row.reply_len) : Py_NewRef(empty);
        PyObject *data = PyBytes_FromStringAndSize(row_data(&row), row.data_len);
        PyObject *header = row.header_len ? PyBytes_FromStringAndSize(row_header(&row), row.header_len)
                                          : Py_NewRef(Py_None);
        PyObject *item = NULL;
        if (subject != NULL && reply != NULL && data != NULL && header != NULL) {
            /* The free slot in front lets a bound method put its self there. */
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
        span.pos = after;
    }
    Py_XDECREF(subject);
    Py_DECREF(empty);
    return PyLong_FromSsize_t(span.pos);
}
