/* Hands a whole record batch of the rows to Arrow, through its C data interface. Part of _speed.c.
 *
 * Each array made through pyarrow costs a reader microseconds while its caches hold what it has just
 * received, and a batch of large messages has few rows to share that cost. Here a batch is one call. */

/* For all six columns; headers alone are five arrays with four children. */
#define MOST_ARRAYS 11
#define MOST_CHILDREN 10
#define MOST_BUFFERS (3 * MOST_ARRAYS)

/* All arrays of a batch in one allocation, which lives until each of them is released. */
typedef struct {
    struct ArrowArray arrays[MOST_ARRAYS];
    struct ArrowArray *children[MOST_CHILDREN];
    int used; /* how many of the arrays */
    int unreleased;
    PyObject *kept; /* a list of the objects that contain the buffers */
    struct ArrowArray **next_child; /* free slots */
    const void **next_buffer;
    const void *buffers[];
} Batch;

/* Called wherever the last reference to a batch is dropped, possibly in one of Arrow's threads. */
static void array_release(struct ArrowArray *array)
{
    if (!Py_IsInitialized()) {
        array->release = NULL; /* the process is about to end */
        return;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    Batch *batch = array->private_data;
    /* A child that was taken over is released by its new owner. */
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release != NULL)
            array->children[i]->release(array->children[i]);
    array->release = NULL;
    if (--batch->unreleased == 0) {
        Py_CLEAR(batch->kept);
        PyMem_RawFree(batch);
    }
    PyGILState_Release(state);
}

/* One more array with slots for children; its buffers are added one by one. The first, for nulls, is NULL. */
static struct ArrowArray *add_array(Batch *batch, int64_t length, int children)
{
    struct ArrowArray *array = &batch->arrays[batch->used++];
    *array = (struct ArrowArray){.length = length, .n_buffers = 1, .buffers = batch->next_buffer,
                                 .n_children = children, .children = batch->next_child,
                                 .release = array_release, .private_data = batch};
    *batch->next_buffer++ = NULL;
    batch->next_child += children;
    batch->unreleased++;
    return array;
}

static void add_buffer(Batch *batch, struct ArrowArray *array, const void *buffer)
{
    *batch->next_buffer++ = buffer;
    array->n_buffers++;
}

/* Takes over the reference; -1 when it is NULL or can't be kept. */
static int batch_keep(Batch *batch, PyObject *owner)
{
    int failed = owner == NULL || PyList_Append(batch->kept, owner) < 0;
    Py_XDECREF(owner);
    return failed ? -1 : 0;
}

/* An array of `count` buffers, from a tuple of bytes or from the rows' packed column. */
static struct ArrowArray *add_made(Batch *batch, int64_t length, PyObject *made, Py_ssize_t first, Py_ssize_t count)
{
    struct ArrowArray *array = add_array(batch, length, 0);
    for (Py_ssize_t i = first; i < first + count; i++)
        add_buffer(batch, array, PyBytes_AS_STRING(PyTuple_GET_ITEM(made, i)));
    return array;
}

/* Empty maps; an entry would be a struct of a key and a list of values. */
static struct ArrowArray *add_no_headers(Batch *batch, int64_t length, PyObject *zeros)
{
    static const int64_t nothing = 0;
    struct ArrowArray *map = add_array(batch, length, 1);
    add_buffer(batch, map, PyBytes_AS_STRING(zeros));
    struct ArrowArray *entries = map->children[0] = add_array(batch, 0, 2);
    struct ArrowArray *key = entries->children[0] = add_array(batch, 0, 0);
    add_buffer(batch, key, &nothing);
    add_buffer(batch, key, &nothing);
    struct ArrowArray *list = entries->children[1] = add_array(batch, 0, 1);
    add_buffer(batch, list, &nothing);
    struct ArrowArray *value = list->children[0] = add_array(batch, 0, 0);
    add_buffer(batch, value, &nothing);
    add_buffer(batch, value, &nothing);
    return map;
}

/* After the views come all chunks, and then their sizes. */
static struct ArrowArray *add_views(Batch *batch, int64_t length, PyObject *made)
{
    struct ArrowArray *array = add_made(batch, length, made, 0, 1);
    PyObject *chunks = PyTuple_GET_ITEM(made, 1);
    Py_ssize_t count = PyList_GET_SIZE(chunks);
    PyObject *sizes = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    if (batch_keep(batch, sizes) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *chunk = PyList_GET_ITEM(chunks, i);
        int64_t size = PyBytes_GET_SIZE(chunk);
        memcpy(PyBytes_AS_STRING(sizes) + i * (Py_ssize_t)sizeof size, &size, sizeof size);
        add_buffer(batch, array, PyBytes_AS_STRING(chunk));
    }
    add_buffer(batch, array, PyBytes_AS_STRING(sizes));
    return array;
}

static int is_ascii(PyObject *bytes, Py_ssize_t len)
{
    const char *text = PyBytes_AS_STRING(bytes);
    char all = 0;
    for (Py_ssize_t i = 0; i < len; i++)
        all |= text[i];
    return !(all & 0x80);
}

/* Bytes with at least `count` + 1 offsets; NULL: an error is set. */
static PyObject *checked(PyObject *constants, Py_ssize_t index, Py_ssize_t count)
{
    PyObject *offsets = PyTuple_GET_ITEM(constants, index);
    if (PyBytes_GET_SIZE(offsets) < (count + 1) * (Py_ssize_t)sizeof(int32_t)) {
        PyErr_SetString(PyExc_ValueError, "constants must have an offset more than there are rows");
        return NULL;
    }
    return offsets;
}

static int is_data(char kind)
{
    return kind == 'd' || kind == 'v';
}

/* The column; NULL with an error set, or NULL without one: it has to be made in another way. */
static struct ArrowArray *add_column(Rows *self, Batch *batch, char kind, PyObject *constants, PyObject **positions)
{
    PyObject *made;
    switch (kind) {
    case 'n': /* name of the stream */
        return checked(constants, 0, self->count) ? add_made(batch, self->count, constants, 0, 2) : NULL;
    case 'q': /* sequence */
    case 't': /* time */
        if (*positions == NULL) {
            *positions = positions_of(self);
            if (batch_keep(batch, *positions) < 0)
                return NULL;
        }
        return *positions == Py_None ? NULL : add_made(batch, self->count, *positions, kind == 't', 1);
    case 's': /* subject */
        made = pack_column(self, 0);
        if (batch_keep(batch, made) < 0)
            return NULL;
        PyObject *text = PyTuple_GET_ITEM(made, 1);
        /* Arrow will read it as UTF-8. */
        int repeated = self->count > 0 && !self->subjects_differ;
        if (!is_ascii(text, repeated ? self->rows[0].subject_len : PyBytes_GET_SIZE(text)))
            return NULL;
        return add_made(batch, self->count, made, 0, 2);
    case 'h': /* headers, if there are none */
        made = checked(constants, 2, self->count);
        return made == NULL ? NULL : add_no_headers(batch, self->count, made);
    case 'd': /* data */
        made = pack_column(self, 2);
        return batch_keep(batch, made) < 0 ? NULL : add_made(batch, self->count, made, 0, 2);
    case 'v': /* data as views */
        made = views_of(self);
        return batch_keep(batch, made) < 0 ? NULL : add_views(batch, self->count, made);
    }
    PyErr_Format(PyExc_ValueError, "no column is called %c", kind);
    return NULL;
}

static PyObject *export_of(Rows *self, const char *kinds, Py_ssize_t columns, PyObject *constants)
{
    size_t places = MOST_BUFFERS + (size_t)PyList_GET_SIZE(self->chunks) + 1;
    Batch *batch = PyMem_RawCalloc(1, sizeof(Batch) + places * sizeof(void *));
    if (batch == NULL)
        return PyErr_NoMemory();
    batch->next_child = batch->children;
    batch->next_buffer = batch->buffers;
    batch->kept = PyList_New(0);
    struct ArrowArray *root = add_array(batch, self->count, (int)columns);
    PyObject *positions = NULL; /* borrowed from what is kept */
    int failed = batch->kept == NULL || batch_keep(batch, Py_NewRef(constants)) < 0;
    /* Data comes last: another column may fail, and then the data would have been copied for nothing. */
    for (int last = 0; last <= 1; last++)
        for (Py_ssize_t i = 0; i < columns && !failed; i++) {
            if (is_data(kinds[i]) != last)
                continue;
            root->children[i] = add_column(self, batch, kinds[i], constants, &positions);
            failed = root->children[i] == NULL;
        }
    if (failed) {
        Py_XDECREF(batch->kept);
        PyMem_RawFree(batch);
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    }
    self->exported = *root;
    return PyLong_FromVoidPtr(&self->exported);
}

PyDoc_STRVAR(rows_export_doc,
"export(kinds, constants) -> int\n\n"
"Where a struct ArrowArray lies, for one who takes it over while these rows live: a batch with a column for\n"
"each of kinds (n name of the stream, q sequence, s subject, t time, h no headers, d data, v data as views).\n"
"constants: offsets and bytes of the stream's name, as often as there are rows, for n, and offsets of as many\n"
"empty maps, for h. 0: some column has to be made in another way, or is wanted twice.");

static PyObject *rows_export(Rows *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t columns = nargs == 2 && PyBytes_Check(args[0]) ? PyBytes_GET_SIZE(args[0]) : 0;
    if (columns < 1 || columns > 6 || !PyTuple_Check(args[1]) || PyTuple_GET_SIZE(args[1]) != 3
        || !PyBytes_Check(PyTuple_GET_ITEM(args[1], 0)) || !PyBytes_Check(PyTuple_GET_ITEM(args[1], 1))
        || !PyBytes_Check(PyTuple_GET_ITEM(args[1], 2))) {
        PyErr_SetString(PyExc_TypeError, "export(bytes of 1 to 6 letters, tuple of three bytes)");
        return NULL;
    }
    const char *kinds = PyBytes_AS_STRING(args[0]);
    PyObject *constants = args[1];
    /* There is room for each kind of column once. */
    for (Py_ssize_t i = 0; i < columns; i++)
        for (Py_ssize_t j = 0; j < i; j++)
            if (kinds[i] == kinds[j] || (is_data(kinds[i]) && is_data(kinds[j])))
                return PyLong_FromLong(0);
    if (!changeable(self)) /* another export has not finished */
        return NULL;
    self->busy++;
    if (self->exported.release != NULL)
        self->exported.release(&self->exported); /* the previous one was not taken over */
    PyObject *address = export_of(self, kinds, columns, constants);
    self->busy--;
    return address;
}
