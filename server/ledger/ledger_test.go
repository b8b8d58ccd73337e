package ledger_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/ledger"
	"bivouac/server/ledger/ledgertest"
)

func export(t testing.TB, shape ledgertest.Shape) (*ledgertest.Signer, []byte) {
	t.Helper()
	s, err := ledgertest.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := ledgertest.Write(&b, s, shape); err != nil {
		t.Fatal(err)
	}
	return s, b.Bytes()
}

func TestVerify(t *testing.T) {
	s, file := export(t, ledgertest.Shape{Sessions: 3, Segments: 4, Events: 5})
	seen := 0
	sum, err := ledger.Verify(bytes.NewReader(file), s.Fingerprint(), func(e ledger.Event) error {
		seen++
		if !strings.Contains(string(e.Stored), fmt.Sprintf(`"seq":%d,"session":"%s"`, e.Seq, e.Session)) {
			t.Errorf("event %d of %s is %s", e.Seq, e.Session, e.Stored)
		}
		return nil
	})
	if err != nil || sum.Events != 60 || seen != 60 || sum.Segments != 12 || sum.Sessions != 3 || sum.Head.Size != 12 {
		t.Fatalf("%+v, %d seen, %v", sum, seen, err)
	}
	other, err := ledgertest.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Verify(bytes.NewReader(file), other.Fingerprint(), nil); protocol.CodeOf(err) != protocol.CodeDataLoss || !strings.Contains(err.Error(), "is trusted") {
		t.Errorf("under another root: %v", err)
	}
}

// One altered byte, wherever it is, is found; in an event, the event is named.
func TestEveryByteCounts(t *testing.T) {
	s, file := export(t, ledgertest.Shape{Sessions: 2, Segments: 2, Events: 2})
	line, seq, session := 1, 0, 0
	for i := range file {
		changed := bytes.Clone(file)
		changed[i] ^= 1
		_, err := ledger.Verify(bytes.NewReader(changed), s.Fingerprint(), nil)
		if protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Fatalf("byte %d, in line %d: %v", i, line, err)
		}
		text := lineOf(file, line)
		if strings.HasPrefix(text, "event ") && file[i] != '\n' && i > lineStart(file, line)+6 {
			if want := fmt.Sprintf("line %d: event %d of session %s was altered", line, seq, ledgertest.Session(session)); !strings.HasPrefix(err.Error(), want) && changed[i] != ' ' && changed[i] != '\n' && file[i] != ' ' {
				t.Errorf("byte %d: %v, want %s", i, err, want)
			}
		}
		if file[i] == '\n' {
			line++
			switch next := lineOf(file, line); {
			case strings.HasPrefix(next, "segment "):
				n := strings.Count(string(file[:i]), "\nsegment ")
				session, seq = n/2, n%2*2
			case strings.HasPrefix(next, "event "):
				seq++
			}
		}
	}
}

func lineOf(file []byte, n int) string {
	lines := strings.SplitN(string(file), "\n", n+1)
	if len(lines) < n {
		return ""
	}
	return lines[n-1]
}

func lineStart(file []byte, n int) (at int) {
	for range n - 1 {
		at += bytes.IndexByte(file[at:], '\n') + 1
	}
	return at
}

// What is taken away, put in twice or in another order is found too.
func TestWholeOrNothing(t *testing.T) {
	s, file := export(t, ledgertest.Shape{Sessions: 2, Segments: 2, Events: 2})
	lines := strings.SplitAfter(string(file), "\n")
	lines = lines[:len(lines)-1]
	join := func(l ...[]string) string {
		var b strings.Builder
		for _, part := range l {
			b.WriteString(strings.Join(part, ""))
		}
		return b.String()
	}
	for name, c := range map[string]struct{ file, says string }{
		"an event is gone":       {join(lines[:3], lines[4:]), "event 1 of session"},
		"the last event is gone": {join(lines[:4], lines[5:]), "missing"},
		"an event comes twice":   {join(lines[:5], lines[4:]), "does not have"},
		"a segment is gone":      {join(lines[:2], lines[5:]), "a segment is missing or out of order"},
		"segments are swapped":   {join(lines[:2], lines[5:8], lines[2:5], lines[8:]), "out of order"},
		"the tail is cut off":    {join(lines[:8]), "a tail was cut off"},
		"half a line":            {join(lines[:8]) + lines[8][:10], "ends in the middle"},
		"something follows":      {string(file) + "event x y\n", "after the end"},
		"nothing":                {"", "a tail was cut off"},
		"another file":           {"hello\n", "no export of a ledger"},
		"an endless line":        {strings.Repeat("x", 5<<20), "longer than"},
	} {
		if _, err := ledger.Verify(strings.NewReader(c.file), s.Fingerprint(), nil); protocol.CodeOf(err) != protocol.CodeDataLoss || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSegmentHasOneForm(t *testing.T) {
	good := ledger.Segment{Session: ledgertest.Session(1), From: 1, To: 7, Hash: bytes.Repeat([]byte{7}, 32)}
	if got, err := ledger.ParseSegment(good.Text()); err != nil || got.To != 7 || !bytes.Equal(got.Hash, good.Hash) {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "x", string(good.Text()) + " ", strings.Replace(string(good.Text()), " 1 ", " 01 ", 1), strings.Replace(string(good.Text()), " 7 ", " 0 ", 1), strings.ToUpper(string(good.Text()))} {
		if _, err := ledger.ParseSegment([]byte(bad)); protocol.CodeOf(err) != protocol.CodeDataLoss {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// FuzzVerify: no file makes it panic or hold what was not signed.
func FuzzVerify(f *testing.F) {
	s, file := export(f, ledgertest.Shape{Sessions: 1, Segments: 2, Events: 2})
	f.Add(file)
	f.Add([]byte("bivouac-ledger-v1\nhead x\nend y\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if sum, err := ledger.Verify(bytes.NewReader(b), s.Fingerprint(), nil); err == nil && !bytes.Equal(b, file) {
			t.Errorf("%d events of a file that nobody signed", sum.Events)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	s, file := export(b, ledgertest.Shape{Sessions: 20, Segments: 10, Events: 250})
	b.SetBytes(int64(len(file)))
	events := int64(0)
	for b.Loop() {
		sum, err := ledger.Verify(bytes.NewReader(file), s.Fingerprint(), nil)
		if err != nil {
			b.Fatal(err)
		}
		events += sum.Events
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
