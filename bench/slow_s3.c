/* A small S3 server for benchmarks: files that are sent as they are, a delay for each request, a cap on the bytes a second.

   slow_s3 LIST DELAY_MS BYTES_PER_S      (0 bytes/s: no cap)

   LIST has a line for each object: bucket/key TAB file TAB etag TAB sum, sorted by key. The kernel sends the files itself.
   The sum is the CRC64NVME in base64, as S3 has it of all that was uploaded since 2025, or - for none.
   It listens on a free port of 127.0.0.1 and prints it. One thread and epoll: it takes a small part of one core,
   since client and server share the machine. It ends with its parent.

   Spoken: GET and HEAD of objects (Range, If-Match, If-None-Match), ListObjectsV2, HEAD of a bucket.
   Not spoken: signatures (all are let in), and whatever changes an object.
   /-/stats tells the counts, /-/reset sets them to zero; these two are not delayed. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_MAX = 64 << 10, CHUNK = 64 << 10, EVENTS = 256, KEYS_MAX = 1000 };

typedef struct {
    char *path; /* bucket/key */
    char *file;
    char *etag;
    char *sum;
    size_t size;
} Object;

typedef enum { READING, DELAYED, SENDING, BLOCKED } State;

typedef struct Connection {
    int fd;
    State state;
    int closing;
    uint64_t due_ns;
    char *in;
    size_t have;
    char *out; /* head, or head and a body of our own */
    size_t out_size, out_sent;
    int file; /* that the body is in; -1: no body */
    off_t body_at;
    size_t body_size, body_sent;
    struct Connection *next; /* in the queue of its state */
} Connection;

typedef struct {
    Connection *first, *last;
} Queue;

static Object *objects;
static size_t object_count;
static uint64_t delay_ns;
static double rate, tokens;
static uint64_t tokens_at;
static Queue delayed, ready;
static int poller, timer;
static struct {
    uint64_t get, head, list, errors, bytes, connections, in_flight, in_flight_max;
} counts;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void *must(void *memory) {
    if (!memory) die("slow_s3: memory");
    return memory;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Objects */

static void load(const char *list) {
    FILE *file = fopen(list, "r");
    if (!file) die(list);
    size_t room = 0, length = 0;
    char *line = NULL;
    while (getline(&line, &length, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        char *path = strtok(line, "\t"), *name = strtok(NULL, "\t"), *etag = strtok(NULL, "\t"), *sum = strtok(NULL, "\t");
        struct stat about;
        if (!sum || stat(name, &about)) die(name ? name : list);
        if (object_count == room) objects = must(realloc(objects, (room = room ? 2 * room : 1024) * sizeof *objects));
        objects[object_count++] =
            (Object){must(strdup(path)), must(strdup(name)), must(strdup(etag)), must(strdup(sum)), (size_t)about.st_size};
    }
    free(line);
    fclose(file);
}

/* The first object whose path is not before this one. */
static size_t lower_bound(const char *path) {
    size_t low = 0, high = object_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(objects[middle].path, path) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static Object *find(const char *path) {
    size_t at = lower_bound(path);
    return at < object_count && !strcmp(objects[at].path, path) ? &objects[at] : NULL;
}

/* Text */

typedef struct {
    char *data;
    size_t size, room;
} Text;

static void add(Text *text, const char *format, ...) {
    for (;;) {
        va_list values;
        va_start(values, format);
        size_t left = text->room - text->size;
        int needed = vsnprintf(text->data ? text->data + text->size : NULL, text->data ? left : 0, format, values);
        va_end(values);
        if (text->data && (size_t)needed < left) {
            text->size += (size_t)needed;
            return;
        }
        text->room = 2 * text->room + (size_t)needed + 256;
        text->data = must(realloc(text->data, text->room));
    }
}

static void unquote(char *text, int plus) {
    char *out = text;
    for (; *text; text++) {
        unsigned value;
        if (*text == '%' && sscanf(text + 1, "%2x", &value) == 1) {
            *out++ = (char)value;
            text += 2;
        } else *out++ = plus && *text == '+' ? ' ' : *text;
    }
    *out = 0;
}

/* A parameter of a query, or of a head: "name" up to `end`; NULL if it is not there. The caller frees it. */
static char *parameter(const char *query, const char *name) {
    size_t length = strlen(name);
    for (const char *at = query; at && *at; at = strchr(at, '&') ? strchr(at, '&') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == '=' || at[length] == '&' || !at[length])) {
            at += length + (at[length] == '=');
            char *value = must(strndup(at, strcspn(at, "&")));
            unquote(value, 1);
            return value;
        }
    return NULL;
}

static char *header(const char *head, const char *name) {
    size_t length = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (!strncasecmp(line + 2, name, length) && line[2 + length] == ':') {
            line += 3 + length;
            line += strspn(line, " ");
            return must(strndup(line, strcspn(line, "\r")));
        }
    return NULL;
}

/* Answers */

static void answer(Connection *to, const char *status, const char *type, const char *extra, int file,
                   off_t at, size_t size, int is_head) {
    Text text = {0};
    add(&text, "HTTP/1.1 %s\r\nServer: slow-s3\r\nx-amz-request-id: 1\r\nContent-Type: %s\r\n%sContent-Length: %zu\r\n%s\r\n",
        status, type, extra, size, to->closing ? "Connection: close\r\n" : "");
    to->out = text.data;
    to->out_size = text.size;
    to->out_sent = to->body_sent = 0;
    to->file = file;
    to->body_at = at;
    to->body_size = is_head ? 0 : size;
}

/* The same with a body of our own, which goes out with the head. */
static void answer_text(Connection *to, const char *status, const char *type, Text *body, int is_head) {
    answer(to, status, type, "", -1, 0, body->size, 1);
    if (!is_head) {
        to->out = must(realloc(to->out, to->out_size + body->size));
        memcpy(to->out + to->out_size, body->data, body->size);
        to->out_size += body->size;
    }
    free(body->data);
}

static void answer_error(Connection *to, const char *status, const char *code, int is_head) {
    counts.errors++;
    Text body = {0};
    add(&body, "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>%s</Code><Message>%s</Message></Error>", code, code);
    answer_text(to, status, "application/xml", &body, is_head);
}

static void answer_list(Connection *to, const char *bucket, const char *query) {
    char *prefix = parameter(query, "prefix"), *after = parameter(query, "start-after");
    char *token = parameter(query, "continuation-token"), *delimiter = parameter(query, "delimiter");
    char *most = parameter(query, "max-keys"), *folder = NULL, *next = NULL;
    size_t limit = most && atol(most) > 0 && atol(most) < KEYS_MAX ? (size_t)atol(most) : KEYS_MAX, listed = 0;
    Text items = {0}, body = {0}, start = {0}, from = {0};
    add(&start, "%s/%s", bucket, prefix ? prefix : "");
    const char *first = token && *token ? token : after && *after ? after : NULL;
    add(&from, "%s/%s", bucket, first ? first : prefix ? prefix : "");
    if (strcmp(from.data, start.data) < 0) from = start;
    add(&items, "%s", "");
    for (size_t at = lower_bound(from.data); at < object_count; at++) {
        Object *object = &objects[at];
        if (strncmp(object->path, start.data, start.size)) break;
        const char *key = object->path + strlen(bucket) + 1;
        if (first && first == after && !strcmp(key, after)) continue;
        const char *end = delimiter && *delimiter ? strstr(object->path + start.size, delimiter) : NULL;
        size_t length = end ? (size_t)(end - key) + strlen(delimiter) : 0;
        if (end && folder && !strncmp(folder, key, length) && !folder[length]) continue;
        if (listed == limit) {
            next = must(strdup(key));
            break;
        }
        listed++;
        if (end) {
            free(folder);
            folder = must(strndup(key, length));
            add(&items, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", folder);
        } else
            add(&items, "<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                "<ETag>&quot;%s&quot;</ETag><Size>%zu</Size><StorageClass>STANDARD</StorageClass></Contents>",
                key, object->etag, object->size);
    }
    add(&body, "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
        "<Name>%s</Name><Prefix>%s</Prefix><KeyCount>%zu</KeyCount><MaxKeys>%zu</MaxKeys><IsTruncated>%s</IsTruncated>",
        bucket, prefix ? prefix : "", listed, limit, next ? "true" : "false");
    if (next) add(&body, "<NextContinuationToken>%s</NextContinuationToken>", next);
    add(&body, "%s</ListBucketResult>", items.data);
    counts.list++;
    answer_text(to, "200 OK", "application/xml", &body, 0);
    if (from.data != start.data) free(from.data);
    free(prefix), free(after), free(token), free(delimiter), free(most), free(folder), free(next);
    free(items.data), free(start.data);
}

/* Whether `wanted`, the value of If-Match or If-None-Match, names this etag. */
static int names(const char *wanted, const char *etag) {
    return wanted && (!strcmp(wanted, "*") || strstr(wanted, etag));
}

static void answer_object(Connection *to, Object *object, const char *head, int is_head) {
    char *match = header(head, "if-match"), *unless = header(head, "if-none-match"), *range = header(head, "range");
    char *sums = header(head, "x-amz-checksum-mode");
    size_t from = 0, end = object->size;
    int is_part = range && !strncasecmp(range, "bytes=", 6);
    if (is_part) {
        char *at = range + 6;
        if (*at == '-') {
            size_t last = strtoull(at + 1, NULL, 10);
            from = last < object->size ? object->size - last : 0;
        } else {
            from = strtoull(at, &at, 10);
            if (*at == '-' && at[1] >= '0' && at[1] <= '9') end = strtoull(at + 1, NULL, 10) + 1;
            if (end > object->size) end = object->size;
        }
    }
    if (match && !names(match, object->etag)) answer_error(to, "412 Precondition Failed", "PreconditionFailed", is_head);
    else if (unless && names(unless, object->etag)) answer(to, "304 Not Modified", "text/plain", "", -1, 0, 0, 1);
    else if (is_part && from >= end) answer_error(to, "416 Range Not Satisfiable", "InvalidRange", is_head);
    else {
        Text extra = {0};
        add(&extra, "ETag: \"%s\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n", object->etag);
        if (is_part) add(&extra, "Content-Range: bytes %zu-%zu/%zu\r\n", from, end - 1, object->size);
        else if (sums && *object->sum != '-')
            add(&extra, "x-amz-checksum-crc64nvme: %s\r\nx-amz-checksum-type: FULL_OBJECT\r\n", object->sum);
        int file = is_head ? -1 : open(object->file, O_RDONLY | O_CLOEXEC);
        if (!is_head && file < 0) die(object->file);
        answer(to, is_part ? "206 Partial Content" : "200 OK", "application/octet-stream", extra.data,
               file, (off_t)from, end - from, is_head);
        free(extra.data);
        if (is_head) counts.head++;
        else counts.get++;
    }
    free(match), free(unless), free(range), free(sums);
}

static void answer_stats(Connection *to) {
    Text body = {0};
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    add(&body, "{\"get\": %lu, \"head\": %lu, \"list\": %lu, \"errors\": %lu, \"bytes\": %lu, \"connections\": %lu, "
        "\"in_flight_max\": %lu, \"cpu_s\": %.3f}\n", counts.get, counts.head, counts.list, counts.errors, counts.bytes,
        counts.connections, counts.in_flight_max, cpu_s);
    answer_text(to, "200 OK", "application/json", &body, 0);
}

/* Connections */

static void push(Queue *queue, Connection *connection) {
    connection->next = NULL;
    if (queue->last) queue->last->next = connection;
    else queue->first = connection;
    queue->last = connection;
}

static Connection *pop(Queue *queue) {
    Connection *connection = queue->first;
    if (connection && !(queue->first = connection->next)) queue->last = NULL;
    return connection;
}

static void listen_for(Connection *connection, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = connection};
    epoll_ctl(poller, EPOLL_CTL_MOD, connection->fd, &event);
}

static void drop(Connection *connection) {
    close(connection->fd);
    if (connection->file >= 0) close(connection->file);
    free(connection->in);
    free(connection->out);
    free(connection);
}

static void set_ready(Connection *connection) {
    connection->state = SENDING;
    push(&ready, connection);
}

/* Take the request that stands whole in the buffer. Return 0 if there is none, -1 if it makes no sense. */
static int take_request(Connection *connection) {
    connection->in[connection->have] = 0;
    char *end = strstr(connection->in, "\r\n\r\n");
    if (!end) return connection->have >= REQUEST_MAX ? -1 : 0;
    char *length = header(connection->in, "content-length");
    size_t whole = (size_t)(end - connection->in) + 4 + (length ? strtoull(length, NULL, 10) : 0);
    free(length);
    if (whole > REQUEST_MAX) return -1;
    if (whole > connection->have) return 0;
    end[2] = 0;
    char method[16], url[8192];
    if (sscanf(connection->in, "%15s %8191s", method, url) != 2 || url[0] != '/') return -1;
    char *close_it = header(connection->in, "connection");
    connection->closing = close_it && !strcasecmp(close_it, "close");
    free(close_it);
    char *query = strchr(url, '?');
    if (query) *query++ = 0;
    unquote(url, 0);
    int is_head = !strcmp(method, "HEAD"), is_ours = !strncmp(url, "/-/", 3);
    char *slash = strchr(url + 1, '/');
    if (is_ours) {
        if (!strcmp(url, "/-/reset")) {
            uint64_t in_flight = counts.in_flight;
            memset(&counts, 0, sizeof counts);
            counts.in_flight = in_flight;
        }
        answer_stats(connection);
    } else if (!is_head && strcmp(method, "GET")) answer_error(connection, "501 Not Implemented", "NotImplemented", 0);
    else if (!slash || !slash[1]) {
        if (slash) *slash = 0;
        if (is_head) answer(connection, "200 OK", "text/plain", "", -1, 0, 0, 1);
        else answer_list(connection, url + 1, query);
    } else {
        Object *object = find(url + 1);
        if (object) answer_object(connection, object, connection->in, is_head);
        else answer_error(connection, "404 Not Found", "NoSuchKey", is_head);
    }
    memmove(connection->in, connection->in + whole, connection->have - whole);
    connection->have -= whole;
    if (++counts.in_flight > counts.in_flight_max) counts.in_flight_max = counts.in_flight;
    if (is_ours || !delay_ns) set_ready(connection);
    else {
        connection->state = DELAYED;
        connection->due_ns = now_ns() + delay_ns;
        push(&delayed, connection);
    }
    listen_for(connection, 0);
    return 1;
}

static void readable(Connection *connection) {
    ssize_t came = recv(connection->fd, connection->in + connection->have, REQUEST_MAX - connection->have, 0);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (came > 0) connection->have += (size_t)came;
    if (came <= 0 || take_request(connection) < 0) drop(connection);
}

/* Send one chunk, as far as the cap allows. The connection goes back to the queue, or waits, or is done. */
static void send_chunk(Connection *connection) {
    while (connection->out_sent < connection->out_size) {
        ssize_t sent = send(connection->fd, connection->out + connection->out_sent,
                            connection->out_size - connection->out_sent, MSG_NOSIGNAL | (connection->body_size ? MSG_MORE : 0));
        if (sent < 0) goto failed;
        connection->out_sent += (size_t)sent;
    }
    if (connection->body_sent < connection->body_size) {
        size_t left = connection->body_size - connection->body_sent, part = left < CHUNK ? left : CHUNK;
        ssize_t sent = sendfile(connection->fd, connection->file, &connection->body_at, part);
        if (sent < 0) goto failed;
        connection->body_sent += (size_t)sent;
        counts.bytes += (uint64_t)sent;
        if (rate) tokens -= (double)sent;
        if (connection->body_sent < connection->body_size) {
            push(&ready, connection);
            return;
        }
    }
    counts.in_flight--;
    free(connection->out);
    connection->out = NULL;
    if (connection->file >= 0) close(connection->file);
    connection->file = -1;
    if (connection->closing) {
        drop(connection);
        return;
    }
    connection->state = READING;
    int taken = connection->have ? take_request(connection) : 0;
    if (taken < 0) drop(connection);
    else if (!taken) listen_for(connection, EPOLLIN);
    return;
failed:
    if (errno == EAGAIN) {
        connection->state = BLOCKED;
        listen_for(connection, EPOLLOUT);
        return;
    }
    counts.in_flight--;
    drop(connection);
}

static void accept_all(int listener) {
    int fd, one = 1, buffer = 1 << 20;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        Connection *connection = must(calloc(1, sizeof *connection));
        connection->fd = fd;
        connection->file = -1;
        connection->in = must(malloc(REQUEST_MAX + 1));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
        counts.connections++;
    }
}

static void refill(uint64_t now) {
    double most = rate * 0.005; /* what was not sent for 5 ms is lost: no bursts above the cap */
    tokens += rate * (double)(now - tokens_at) / 1e9;
    if (tokens > most) tokens = most;
    tokens_at = now;
}

/* Send what is due; return when to look again, 0 if nothing waits. */
static uint64_t work(void) {
    uint64_t now = now_ns();
    if (rate) refill(now);
    while (delayed.first && delayed.first->due_ns <= now) set_ready(pop(&delayed));
    while (ready.first && (!rate || tokens > 0)) {
        send_chunk(pop(&ready));
        if (!rate && ready.first == NULL) break;
    }
    uint64_t at = delayed.first ? delayed.first->due_ns : 0;
    if (ready.first) {
        uint64_t refilled = now + (uint64_t)((CHUNK / 2 - tokens) / rate * 1e9);
        if (!at || refilled < at) at = refilled;
    }
    return at;
}

int main(int count, char **arguments) {
    if (count != 4) {
        fprintf(stderr, "usage: slow_s3 LIST DELAY_MS BYTES_PER_S\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    load(arguments[1]);
    delay_ns = (uint64_t)(atof(arguments[2]) * 1e6);
    rate = atof(arguments[3]);
    tokens_at = now_ns();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (listener < 0 || bind(listener, (void *)&address, length) || listen(listener, 4096)) die("slow_s3: listen");
    getsockname(listener, (void *)&address, &length);
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &poller};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = &timer;
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        uint64_t at = work();
        struct itimerspec when = {.it_value = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)}};
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        struct epoll_event events[EVENTS];
        int happened = epoll_wait(poller, events, EVENTS, -1);
        for (int each = 0; each < happened; each++) {
            if (events[each].data.ptr == &poller) accept_all(listener);
            else if (events[each].data.ptr == &timer) {
                uint64_t ticks;
                while (read(timer, &ticks, sizeof ticks) > 0) continue;
            } else {
                Connection *connection = events[each].data.ptr;
                if (connection->state == READING) readable(connection);
                else if (connection->state == BLOCKED) {
                    listen_for(connection, 0);
                    set_ready(connection);
                }
                else epoll_ctl(poller, EPOLL_CTL_DEL, connection->fd, NULL); /* it has gone: sending will tell */
            }
        }
    }
}
