package audit

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var reader = Reader{Grants: "bivouac-grants"}

func said(kind, operation, path string) string {
	return fmt.Sprintf(`{"time":"2026-11-30T02:00:00Z","type":%q,"auth":{"accessor":"hmac-sha256:0"},"request":{"id":"x","operation":%q,"path":%q,"namespace":{"id":"root"}}}`, kind, operation, path)
}

func TestMatter(t *testing.T) {
	for line, want := range map[string]Matter{
		said("response", "update", "auth/token/revoke-accessor"):            Tokens,
		said("response", "update", "auth/token/revoke"):                     Tokens,
		said("response", "update", "auth/token/revoke-orphan"):              Tokens,
		said("response", "update", "sys/leases/revoke-prefix/auth/token/x"): Tokens,
		said("response", "update", "identity/entity/id/x"):                  Tokens,
		said("response", "update", "identity/entity/name/x"):                Tokens,
		said("response", "update", "sys/policies/acl/bivouac-grant"):        Tokens,
		said("response", "delete", "sys/policies/acl/bivouac-grant"):        Tokens,
		said("response", "update", "auth/token/roles/bivouac-grant"):        Tokens,
		said("response", "update", "bivouac-grants/data/prn_x/grt_x"):       Index,
		said("response", "delete", "bivouac-grants/metadata/prn_x/grt_x"):   Index,
		said("response", "update", "bivouac-grants/destroy/prn_x/grt_x"):    Index,
		"@cee: " + said("response", "update", "auth/token/revoke-accessor"): Tokens,

		said("request", "update", "auth/token/revoke-accessor"):       Nothing,
		said("response", "update", "auth/token/revoke-self"):          Nothing,
		said("response", "update", "auth/token/renew-accessor"):       Nothing,
		said("response", "read", "identity/entity/id/x"):              Nothing,
		said("response", "read", "sys/policies/acl/bivouac-grant"):    Nothing,
		said("response", "create", "bivouac-grants/data/prn_x/grt_x"): Nothing,
		said("response", "read", "bivouac-grants/data/prn_x/grt_x"):   Nothing,
		said("response", "update", "secret/data/auth/token/revoke"):   Nothing,
		"auth/token/revoke": Nothing,
		"":                  Nothing,
		`{"type":"response","request":{"path":"identity/"`: Nothing,
		`{"type":1,"request":"identity/"}`:                 Nothing,
	} {
		if got := reader.Read([]byte(line)).Matter; got != want {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
}

// What a line names is read of it, and what it does not name is anything.
func TestNamed(t *testing.T) {
	const (
		hash  = "hmac-sha256:5f1c"
		grant = "grt_01m8n7q1trjscemybp9rg3gnf2"
		entry = "prn_01m8n7mng1x16gsh7mgchdm30b/" + grant
	)
	about := func(path, data string) string {
		return fmt.Sprintf(`{"type":"response","request":{"id":"r1","operation":"update","path":%q,"data":%s}}`, path, data)
	}
	accessor := `{"accessor":"` + hash + `"}`
	for line, want := range map[string]Change{
		about("auth/token/revoke-accessor", accessor):                                            {Matter: Tokens, Accessor: hash},
		about("auth/token/revoke-accessor", `{"accessor":7}`):                                    {Matter: Tokens},
		about("auth/token/revoke-accessor", `[]`):                                                {Matter: Tokens},
		about("auth/token/revoke-accessor", `null`):                                              {Matter: Tokens},
		about("auth/token/revoke-accessor/x", accessor):                                          {Matter: Tokens},
		about("auth/token/revoke", `{"token":"`+hash+`"}`):                                       {Matter: Tokens},
		about("auth/token/lookup-accessor", accessor):                                            {Matter: Asked, Accessor: hash, Request: "r1"},
		about("auth/token/lookup", accessor):                                                     {},
		about("identity/entity/id/6f0d", `{}`):                                                   {Matter: Tokens, Entity: "6f0d"},
		about("identity/entity/merge", `{}`):                                                     {Matter: Tokens},
		about("bivouac-grants/data/"+entry, `{}`):                                                {Matter: Index, Grant: grant},
		about("bivouac-grants/metadata/"+entry, `{}`):                                            {Matter: Index, Grant: grant},
		about("bivouac-grants/destroy/"+entry, `{}`):                                             {Matter: Index, Grant: grant},
		about("bivouac-grants/metadata/"+entry+"/deeper", `{}`):                                  {Matter: Index},
		about("bivouac-grants/data/x/y", `{}`):                                                   {Matter: Index},
		about("bivouac-grants/config", `{}`):                                                     {Matter: Index},
		strings.Replace(about("auth/token/lookup-accessor", accessor), "response", "request", 1): {},
	} {
		if got := reader.Read([]byte(line)); got != want {
			t.Errorf("%s: %+v, want %+v", line, got, want)
		}
	}
}

// Whatever a line holds, it is read or passed by, however it is cut.
func FuzzSplit(f *testing.F) {
	f.Add(said("response", "update", "auth/token/revoke-accessor")+"\n"+said("response", "delete", "bivouac-grants/metadata/a/b")+"\n", 7)
	f.Add("{\n}\n\n\x00\xff", 1)
	f.Add(`{"type":"response","request":{"operation":"update","path":"identity/`+strings.Repeat("x", 300)+`"}}`+"\n", 64)
	f.Fuzz(func(t *testing.T, text string, size int) {
		count := func(size int) (out []Matter) {
			s := lines(reader, func(c Change) { out = append(out, c.Matter) })
			for rest := text; rest != ""; {
				n := min(max(size, 1), len(rest))
				s.feed([]byte(rest[:n]))
				rest = rest[n:]
			}
			return out
		}
		if whole, cut := count(len(text)), count(size); fmt.Sprint(whole) != fmt.Sprint(cut) {
			t.Errorf("whole %v, in pieces of %d %v", whole, size, cut)
		}
	})
}

func TestLongLineCountsAsMissed(t *testing.T) {
	var got []Matter
	s := lines(reader, func(c Change) { got = append(got, c.Matter) })
	s.feed([]byte(strings.Repeat("x", MaxLine)))
	s.feed([]byte("x"))
	if len(got) != 0 {
		t.Errorf("before its end: %v", got)
	}
	s.feed([]byte("\n" + said("response", "read", "identity/x") + "\n"))
	if fmt.Sprint(got) != fmt.Sprint([]Matter{Tokens, Index}) {
		t.Errorf("%v", got)
	}
}

// followed is a file or socket that is followed; await waits for a line that matters.
type followed struct {
	t   *testing.T
	got chan Matter
}

func follow(t *testing.T, run func(context.Context, func(Change)) error) followed {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	f := followed{t, make(chan Matter, 1024)}
	over := make(chan error)
	go func() { over <- run(ctx, func(c Change) { f.got <- c.Matter }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f followed) await(want Matter) {
	f.t.Helper()
	for {
		select {
		case m := <-f.got:
			if m == want {
				return
			}
		case <-f.t.Context().Done():
			f.t.Fatal("no line came")
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// A file is followed from its end, over lines that come in pieces, a rotation with
// rename, one in place, and its absence.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	index := said("response", "delete", "bivouac-grants/metadata/a/b") + "\n"
	tokens := said("response", "update", "auth/token/revoke-accessor") + "\n"
	write(t, path, tokens) // of before
	looked := make(chan struct{})
	f := follow(t, File{Path: path, Reader: reader, Log: slog.New(slog.DiscardHandler), looked: func() { close(looked) }}.Run)
	<-looked
	if len(f.got) != 0 {
		t.Errorf("what was there before: %v", <-f.got)
	}
	write(t, path, tokens[:40])
	write(t, path, tokens[40:])
	f.await(Tokens)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path+".1", index) // its writer has not changed over yet
	f.await(Index)
	write(t, path, "")
	f.await(Tokens) // whatever was missed in between
	f.await(Index)
	write(t, path, index)
	f.await(Index)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	f.await(Tokens)
	f.await(Index)
	write(t, path, index)
	f.await(Index)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, tokens)
	f.await(Tokens)
}

// A socket is read whole, from many writers, and takes over from one that died.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	f := follow(t, Socket{Path: path, Reader: reader, Log: slog.New(slog.DiscardHandler)}.Run)
	dial := func() net.Conn {
		for {
			c, err := net.Dial("unix", path)
			if err == nil {
				t.Cleanup(func() { c.Close() })
				return c
			}
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
	}
	first, second := dial(), dial()
	for range 2 {
		f.await(Index) // a new writer may have said something before
	}
	line := said("response", "update", "auth/token/revoke-accessor") + "\n"
	for _, piece := range []string{line[:10], line[10:]} {
		if _, err := first.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	f.await(Tokens)
	if _, err := second.Write([]byte(said("response", "delete", "bivouac-grants/metadata/a/b") + "\n")); err != nil {
		t.Fatal(err)
	}
	f.await(Index)
	if _, err := listen(path); err == nil {
		t.Error("a second broker took the socket of a first that lives")
	}
	plain := filepath.Join(t.TempDir(), "file")
	write(t, plain, "x")
	if _, err := listen(plain); err == nil {
		t.Error("a file was taken for a socket")
	}
}
