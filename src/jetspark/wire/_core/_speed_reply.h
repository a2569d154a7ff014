/* Numbers, and the ack replies that consist of them. Part of _speed.c. */

/* A decimal number that fits an int64; -1 if it is not one. */
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

/* How many of the 8 bytes at `at` are digits before the first other byte, and their value. */
static int read_digits(const char *at, uint64_t *value)
{
#if PY_LITTLE_ENDIAN && defined(__GNUC__)
    uint64_t word;
    memcpy(&word, at, 8);
    word ^= 0x3030303030303030u; /* every digit is now its value */
    /* The lowest high bit marks the first non-digit; carries into the bytes above it do not matter. */
    uint64_t others = ((word + 0x7676767676767676u) | word) & 0x8080808080808080u;
    int count = others ? __builtin_ctzll(others) >> 3 : 8;
    if (count == 0)
        return 0;
    word <<= 64 - 8 * count; /* leading zeros; then pairs, fours, all */
    word = word * 10 + (word >> 8);
    word = ((word & 0x000000FF000000FFu) * 0x000F424000000064u
            + ((word >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u) >> 32;
    *value = word;
    return count;
#else
    int count = 0;
    *value = 0;
    for (; count < 8 && (unsigned char)(at[count] - '0') <= 9; count++)
        *value = *value * 10 + (unsigned char)(at[count] - '0');
    return count;
#endif
}

/* Microseconds from 19 digits, the length of nanoseconds these days; -1 if they are not an int64. */
static int64_t read_microseconds(const char *digits)
{
    uint64_t high, low;
    if (read_digits(digits, &high) != 8 || read_digits(digits + 8, &low) != 8)
        return -1;
    int64_t time = (int64_t)(high * 100000000 + low), rest = read_number(digits + 16, digits + 19);
    if (rest < 0 || time > INT64_MAX / 1000 || (time == INT64_MAX / 1000 && rest > INT64_MAX % 1000))
        return -1;
    return time;
}

static const char *skip_digits(const char *at, const char *end)
{
    uint64_t passed;
    while (end - at >= 8) {
        int count = read_digits(at, &passed);
        at += count;
        if (count < 8)
            return at;
    }
    while (at < end && (unsigned char)(*at - '0') <= 9)
        at++;
    return at;
}

/* What an ack reply says about its message. */
typedef struct {
    int64_t sequence;
    int64_t time; /* microseconds; -1: it is not an ack reply */
} Position;

/* Whether parse_ack_reply accepts it as a number: digits that fit a uint64. */
static int is_count(const char *start, const char *end)
{
    if (start == end || end - start > 20 || (end - start == 20 && memcmp(start, "18446744073709551615", 20) > 0))
        return 0;
    for (; start < end; start++)
        if ((unsigned char)(*start - '0') > 9)
            return 0;
    return 1;
}

/* ADR-15 'JSAck': 9 tokens; or 11 and more, with domain and account after the first two. Returns the number
 * of bytes before the sequence; 0 for a reply with more tokens after its pending, or for anything else. What
 * parse_ack_reply would refuse has no position here. */
static Py_ssize_t read_position(const char *start, const char *end, Position *position)
{
    const char *dots[12];
    int tokens = 1;
    position->sequence = position->time = -1;
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
    const char *nanoseconds = dots[first + 2] + 1, *last = dots[first + 3];
    const char *pending_end = first + 4 < tokens ? dots[first + 4] : end;
    if (!is_count(dots[first - 1] + 1, dots[first]) || !is_count(dots[first + 1] + 1, dots[first + 2])
        || !is_count(last + 1, pending_end))
        return 0;
    position->sequence = read_number(dots[first] + 1, dots[first + 1]);
    if (position->sequence < 0)
        return 0;
    int64_t time = read_number(nanoseconds, last);
    position->time = time >= 0 ? time / 1000 : last - nanoseconds == 19 ? read_microseconds(nanoseconds) : -1;
    return tokens <= 11 && position->time >= 0 ? dots[first] + 1 - start : 0;
}

/* The rest of a reply whose front is known: "sequence.sequence.nanoseconds.pending", all of it digits,
 * somewhere before `end`. Returns its end; NULL: look closer. */
static const char *read_rest(const char *at, const char *end, Position *position)
{
    static const uint64_t shifts[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
    if (end - at < 25) /* the shortest with 19 digits of nanoseconds */
        return NULL;
    uint64_t high, low = 0;
    int digits = read_digits(at, &high), more = digits == 8 ? read_digits(at + 8, &low) : 0;
    at += digits + more;
    if (digits == 0 || more == 8 || *at != '.')
        return NULL;
    position->sequence = (int64_t)(high * shifts[more] + low);
    const char *delivery = at + 1;
    at = skip_digits(delivery, end);
    if (at == delivery || at - delivery > 19 || end - at < 22 || *at != '.' || at[20] != '.')
        return NULL;
    position->time = read_microseconds(at + 1);
    const char *pending = at + 21;
    at = skip_digits(pending, end);
    return position->time < 0 || at == pending || at - pending > 19 ? NULL : at;
}
