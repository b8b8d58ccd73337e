package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"bivouac/edge/protocol"
)

// classifyPostgres reads SQLSTATE, and what the connection says when there is
// none.
func classifyPostgres(err error) failure {
	var e *pgconn.PgError
	var c *pgconn.ConnectError
	switch {
	case errors.As(err, &e):
		return classifyState(e.Code)
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		return readOnly
	case errors.As(err, &c):
		return away
	case pgconn.Timeout(err), errors.Is(err, context.DeadlineExceeded):
		return slow
	case lostConnection(err):
		return away
	}
	return failed
}

func classifyState(code string) failure {
	switch code {
	case "40001", "40P01": // serialization, deadlock
		return raced
	case "53300": // too many connections
		return crowded
	case "25006": // a standby, or default_transaction_read_only
		return readOnly
	case "42P01", "42703", "42704", "3F000": // no such table, column, type, schema
		return altered
	case "57014", "55P03", "25P03": // statement, lock and idle timeouts of the database's own
		return slow
	}
	switch code[:min(2, len(code))] {
	case "23":
		return refused
	case "53", "58": // no disk, no memory; input and output
		return spoiled
	case "08", "57": // connection exceptions; it shuts down, crashed or starts
		return away
	case "28", "3D", "42": // login, database, privilege
		return barred
	}
	return failed
}

// lostConnection reports an error of the connection itself.
func lostConnection(err error) bool {
	var n net.Error
	if errors.As(err, &n) || pgconn.SafeToRetry(err) {
		return true
	}
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, driver.ErrBadConn, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, known) {
			return true
		}
	}
	return strings.Contains(err.Error(), "conn closed")
}

// unreachable says at the start why there is no database, and what mends it. Only
// what may pass by itself is unavailable.
func unreachable(cfg *pgx.ConnConfig, err error) error {
	code, remedy := protocol.CodeUnavailable, "start it, or correct the DSN"
	switch classifyPostgres(err) {
	case barred:
		code, remedy = protocol.CodeFailedPrecondition, "give this server a role that may log in there and owns its schema, and correct the DSN"
	case readOnly:
		remedy = remedyReadOnly
	case crowded:
		remedy = remedyCrowded
	}
	return &protocol.Error{Code: code, Err: err, RetryAfter: time.Second,
		Message: fmt.Sprintf("PostgreSQL at %s cannot be used (%v): %s", hostsOf(cfg), oneLine(err), remedy)}
}

const (
	remedyReadOnly = "it is a standby, or default_transaction_read_only is on; name the primary in the DSN, or all hosts of the cluster"
	remedyCrowded  = "raise max_connections there, or lower max_connections in the store block of server.hcl"
)

func hostsOf(cfg *pgx.ConnConfig) string {
	hosts := []string{cfg.Host}
	for _, f := range cfg.Fallbacks {
		if last := hosts[len(hosts)-1]; f.Host != last {
			hosts = append(hosts, f.Host)
		}
	}
	return strings.Join(hosts, ", ")
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// explainPostgres turns the failures that only PostgreSQL has into words.
func explainPostgres(kind failure, err error) error {
	say := func(code protocol.Code, format string, args ...any) error {
		return &protocol.Error{Code: code, Err: err, RetryAfter: time.Second, Message: fmt.Sprintf(format, args...)}
	}
	switch kind {
	case away:
		return say(protocol.CodeUnavailable, "the connection to PostgreSQL was lost (%s): nothing was changed; check that it runs, the server connects again by itself", oneLine(err))
	case slow:
		return say(protocol.CodeUnavailable, "PostgreSQL does not answer in time (%s): nothing was changed; look at its load, and at locks in pg_stat_activity", oneLine(err))
	case readOnly:
		return say(protocol.CodeUnavailable, "PostgreSQL takes no writes (%s): %s", oneLine(err), remedyReadOnly)
	case crowded:
		return say(protocol.CodeUnavailable, "PostgreSQL has no connection left (%s): %s", oneLine(err), remedyCrowded)
	case altered:
		return say(protocol.CodeIncompatible, "the schema in PostgreSQL is not the one that this server made (%s): restore the database from a backup, or start the server that changed it", oneLine(err))
	case barred:
		return say(protocol.CodeFailedPrecondition, "PostgreSQL refuses this server (%s): give its role the right to log in, and the schema", oneLine(err))
	}
	return nil
}
