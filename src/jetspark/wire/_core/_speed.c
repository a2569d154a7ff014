/* The compiled inner loops of the wire, and nothing else. Optional: all of them exist in Python as well.
 *
 * Reading (_speed_read.h): consecutive messages of one subscription. It stops at the first line that is
 * anything but the next complete, well-formed message of the same subscription; the parser's general loop, in
 * Python, takes over from there. So statuses, errors, limits and all rare cases are handled in one place, and
 * this code can refuse nothing and lose nothing. `read_run` calls the route's factory for each message, with
 * the same arguments as the Python loop.
 *
 * Columns (_speed_rows.h): a `Rows` records where subject, reply and payload of each message lie in the
 * received chunk, which it keeps alive. Nothing is copied until `pack` writes the offsets and the data of an
 * Arrow array. `export` (_speed_arrow.h) makes a whole record batch of them.
 *
 * Publishing (_speed_publish.h): whole commands, and the acks that say no more than "stored". All other
 * answers to a publish are left to the publisher, in Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "_speed_reply.h"
#include "_speed_read.h"
#include "_speed_rows.h"
#include "_speed_arrow.h"
#include "_speed_ack.h"
#include "_speed_publish.h"
#include "_speed_settle.h"

/* The version of the interface to Python: names, arguments, results. _backend.py has the same number and does
 * not use a core with another one. Add 1 to both when any of these changes. */
#define ABI 3

static PyMethodDef rows_methods[] = {
    {"read", (PyCFunction)(void (*)(void))rows_read, METH_FASTCALL, rows_read_doc},
    {"resume", (PyCFunction)(void (*)(void))rows_resume, METH_FASTCALL, rows_resume_doc},
    {"export", (PyCFunction)(void (*)(void))rows_export, METH_FASTCALL, rows_export_doc},
    {"extend", (PyCFunction)rows_extend, METH_O, rows_extend_doc},
    {"truncate", (PyCFunction)rows_truncate, METH_O, rows_truncate_doc},
    {"cells", (PyCFunction)rows_cells, METH_O, rows_cells_doc},
    {"reply", (PyCFunction)rows_reply, METH_O, rows_reply_doc},
    {"pack", (PyCFunction)rows_pack, METH_O, rows_pack_doc},
    {"positions", (PyCFunction)rows_positions, METH_NOARGS, rows_positions_doc},
    {"settle", (PyCFunction)(void (*)(void))rows_settle, METH_FASTCALL, rows_settle_doc},
    {"views", (PyCFunction)rows_views, METH_NOARGS, rows_views_doc},
    {"size", (PyCFunction)rows_size, METH_NOARGS, rows_size_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef rows_members[] = {
    {"need", T_PYSSIZET, offsetof(Rows, need), READONLY,
     "Bytes of the message at which read stopped for want of its end; 0: it stopped at none."},
    {NULL, 0, 0, 0, NULL},
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
    .tp_members = rows_members,
    .tp_new = rows_new,
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
    if (PyType_Ready(&RowsType) < 0)
        return NULL;
    names_of_plain_ack = Py_BuildValue("(ss)", "stream", "seq");
    names_of_full_ack = Py_BuildValue("(ssss)", "stream", "seq", "domain", "duplicate");
    name_set_result = PyUnicode_InternFromString("set_result");
    name_done = PyUnicode_InternFromString("done");
    name_acked = PyUnicode_InternFromString("acked_many");
    if (names_of_plain_ack == NULL || names_of_full_ack == NULL
        || name_set_result == NULL || name_done == NULL || name_acked == NULL)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddIntConstant(module, "ABI", ABI) < 0
        || PyModule_AddObjectRef(module, "Rows", (PyObject *)&RowsType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
