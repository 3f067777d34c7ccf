/* A program that speaks nng and has no node: it asks, surveys, publishes and follows through a door.
 *
 *     gcc -Wall -o ask ask.c -lnng
 *     ./ask ipc:///run/door            the base of the addresses that `iris door` prints
 */

#include <nng/nng.h>
#include <nng/protocol/pipeline0/push.h>
#include <nng/protocol/pubsub0/sub.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/protocol/survey0/survey.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST (4 << 20)

static void
check(int code, const char *what)
{
	if (code != 0) {
		fprintf(stderr, "%s: %s\n", what, nng_strerror(code));
		exit(1);
	}
}

/* Connect a socket to the address of its protocol. */
static nng_socket
connect_to(int (*open)(nng_socket *), const char *base, const char *protocol)
{
	nng_socket socket;
	char       url[256];

	snprintf(url, sizeof(url), "%s.%s", base, protocol);
	check(open(&socket), protocol);
	check(nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, LARGEST), url);
	check(nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, 10000), url);
	check(nng_dial(socket, url, NULL, 0), url);
	return (socket);
}

static void
say(nng_socket socket, const char *message)
{
	check(nng_send(socket, (void *) message, strlen(message), 0), "send");
}

/* Show a message: its first line and its payload. */
static void
hear(nng_socket socket, const char *who)
{
	char  *message;
	size_t size;
	char  *end;

	check(nng_recv(socket, &message, &size, NNG_FLAG_ALLOC), who);
	end = memchr(message, '\n', size);
	if (end == NULL) {
		fprintf(stderr, "%s: no message of a door\n", who);
		exit(1);
	}
	printf("%s [%.*s] %.*s\n", who, (int) (end - message), message,
	    (int) (message + size - end - 1), end + 1);
	fflush(stdout);
	nng_free(message, size);
}

int
main(int argc, char **argv)
{
	nng_socket req, surveyor, push, sub;

	if (argc != 2) {
		fprintf(stderr, "usage: %s BASE\n", argv[0]);
		return (2);
	}
	req      = connect_to(nng_req0_open, argv[1], "req");
	surveyor = connect_to(nng_surveyor0_open, argv[1], "surveyor");
	push     = connect_to(nng_push0_open, argv[1], "push");
	sub      = connect_to(nng_sub0_open, argv[1], "sub");
	check(nng_socket_set(sub, NNG_OPT_SUB_SUBSCRIBE, "orders.", 7), "subscribe");

	say(req, "greeters text\nworld");
	hear(req, "request");
	say(req, "nobody text\nworld");
	hear(req, "refusal");
	say(surveyor, "greeters text timeout=0.5\nis anybody there?");
	hear(surveyor, "survey");
	say(push, "orders.tea json\n{\"amount\": 3}");
	hear(sub, "event");

	nng_close(req);
	nng_close(surveyor);
	nng_close(push);
	nng_close(sub);
	return (0);
}
