package protocol

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
)

// declared reads the Code constants from the source: a new one cannot be
// forgotten in the table.
func declared(t *testing.T) map[Code]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[Code]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) == 0 || !strings.HasPrefix(spec.Names[0].Name, "Code") || len(spec.Values) == 0 {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
			s, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			out[Code(s)] = true
		}
		return true
	})
	return out
}

func TestTableIsTotal(t *testing.T) {
	consts := declared(t)
	if len(consts) < 21 {
		t.Fatalf("only %d codes were found in the source", len(consts))
	}
	exits := map[int]Code{}
	for code := range consts {
		m, ok := Codes[code]
		if !ok {
			t.Errorf("%s has no row in the table", code)
			continue
		}
		if m.Connect < uint32(connect.CodeCanceled) || m.Connect > uint32(connect.CodeUnauthenticated) {
			t.Errorf("%s maps to Connect code %d", code, m.Connect)
		}
		if http.StatusText(m.HTTP) == "" && m.HTTP != 499 || m.HTTP < 400 {
			t.Errorf("%s maps to HTTP status %d", code, m.HTTP)
		}
		if other, taken := exits[m.Exit]; taken || m.Exit == ExitDiffers || m.Exit < 1 || m.Exit > 125 {
			t.Errorf("%s has the exit code %d, taken by %q", code, m.Exit, other)
		}
		exits[m.Exit] = code
		if code.ExitCode() != m.Exit || code.Retryable() != m.Retryable {
			t.Errorf("the methods of %s do not read its row", code)
		}
	}
	for code := range Codes {
		if !consts[code] {
			t.Errorf("the table has %s, and there is no such code", code)
		}
	}
	if Code("made_up").ExitCode() != 1 || Code("made_up").Retryable() {
		t.Error("an unknown code is not a plain failure")
	}
}

func TestRetryableOnlyWhereNothingHappened(t *testing.T) {
	for code, m := range Codes {
		want := code == CodeQueueFull || code == CodeRateLimited || code == CodeUnavailable
		if m.Retryable != want {
			t.Errorf("%s retryable = %t", code, m.Retryable)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for code := range Codes {
		sent := &Error{Code: code, Message: "what failed, and why", RetryAfter: 1500 * time.Millisecond}
		var got *Error
		if !errors.As(FromConnect(ToConnect(fmt.Errorf("context: %w", sent))), &got) {
			t.Fatalf("%s came back as no Error", code)
		}
		if got.Code != code || got.Message != "context: what failed, and why" || got.RetryAfter != 2*time.Second || got.Detail != "" {
			t.Errorf("%s came back as %+v", code, got)
		}
		sent.Detail = DetailSliceBoot
		if got := FromConnect(ToConnect(fmt.Errorf("context: %w", sent))); CodeOf(got) != code || DetailOf(got) != DetailSliceBoot {
			t.Errorf("%s with a detail came back as %s with %q", code, CodeOf(got), DetailOf(got))
		}
	}
}

func TestFromConnect(t *testing.T) {
	if err := FromConnect(nil); err != nil {
		t.Errorf("nil gave %v", err)
	}
	if err := FromConnect(context.Canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context gave %v", err)
	}
	if got := CodeOf(FromConnect(errors.New("connection refused"))); got != CodeUnavailable {
		t.Errorf("a transport failure has code %s", got)
	}
	for c := connect.CodeCanceled; c <= connect.CodeUnauthenticated; c++ {
		foreign := connect.NewWireError(c, errors.New("from a proxy"))
		code := CodeOf(FromConnect(foreign))
		if m, ok := Codes[code]; !ok || m.Connect != uint32(c) && code != CodeInternal && c != connect.CodeOutOfRange && c != connect.CodeUnimplemented {
			t.Errorf("Connect %s without our header became %q", c, code)
		}
		foreign.Meta().Set(headerCode, "made_up")
		foreign.Meta().Set(headerRetryAfter, "-1")
		var e *Error
		if !errors.As(FromConnect(foreign), &e) || e.Code != code || e.RetryAfter != 0 {
			t.Errorf("unknown headers changed %q to %+v", code, e)
		}
	}
}

// A stream that breaks in the middle looks like an internal fault of the peer,
// which did not say so: it may be asked again.
func TestBrokenConnectionIsUnavailable(t *testing.T) {
	for _, c := range []connect.Code{connect.CodeInternal, connect.CodeUnknown} {
		if got := CodeOf(FromConnect(connect.NewError(c, io.ErrUnexpectedEOF))); got != CodeUnavailable {
			t.Errorf("a broken connection (%s) has code %s", c, got)
		}
		if got := CodeOf(FromConnect(connect.NewWireError(c, errors.New("a fault")))); got != CodeInternal {
			t.Errorf("a peer's own %s has code %s", c, got)
		}
	}
	if got := CodeOf(FromConnect(connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded))); got != CodeDeadlineExceeded {
		t.Errorf("a deadline of this side has code %s", got)
	}
}

func TestCodeOf(t *testing.T) {
	cause := errors.New("disk full")
	e := Errorf(CodeUnavailable, "write journal: %w", cause)
	for want, err := range map[Code]error{
		"":                   nil,
		CodeUnavailable:      fmt.Errorf("start attempt: %w", e),
		CodeDeadlineExceeded: fmt.Errorf("call: %w", context.DeadlineExceeded),
		CodeCancelled:        context.Canceled,
		CodeInternal:         cause,
	} {
		if got := CodeOf(err); got != want {
			t.Errorf("CodeOf(%v) = %q, want %q", err, got, want)
		}
	}
	if !errors.Is(e, cause) || !errors.Is(e, &Error{Code: CodeUnavailable}) || errors.Is(e, &Error{Code: CodeNotFound}) {
		t.Errorf("errors.Is does not see the cause or the code of %v", e)
	}
}

// A connection that a killed process leaves is reset. That is no cancellation: the
// caller asks again, and a call that somebody here cancelled stays cancelled.
func TestResetIsUnavailable(t *testing.T) {
	reset := &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for name, c := range map[string]struct {
		err  error
		want Code
	}{
		"reset":     {connect.NewError(connect.CodeCanceled, reset), CodeUnavailable},
		"broken":    {connect.NewError(connect.CodeCanceled, os.NewSyscallError("write", syscall.EPIPE)), CodeUnavailable},
		"cancelled": {connect.NewError(connect.CodeCanceled, context.Canceled), CodeCancelled},
		"both":      {connect.NewError(connect.CodeCanceled, errors.Join(reset, context.Canceled)), CodeCancelled},
	} {
		if got := CodeOf(FromConnect(c.err)); got != c.want {
			t.Errorf("%s is %s, not %s", name, got, c.want)
		}
	}
}
