package storetest

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bivouac/edge/protocol"
	"bivouac/server/store"
)

// probe tries one method of Tx on the rows of a side, as whoever the transaction
// is for. found says that a row of that side was answered or changed.
type probe struct {
	run func(tx *store.Tx, x *side) (found bool, err error)
	// by are the callers of the side itself that may; everybody else may not.
	by []role
	// knows sees the row and may not do this to it: it need not be told "absent".
	knows role
	// everybody may: it answers no row.
	everybody bool
}

// role is a kind of caller of one side.
type role string

const (
	asUser        role = "user"         // whose rows they are
	asAdmin       role = "admin"        // of the tenant
	asBystander   role = "bystander"    // another principal of the tenant
	asRunner      role = "runner"       // the machine that works for the user
	asOtherRunner role = "other runner" // another machine of the tenant
	asLoop        role = "loop"
)

var roles = []role{asUser, asAdmin, asBystander, asRunner, asOtherRunner, asLoop}

func (x *side) caller(r role) store.Caller {
	switch r {
	case asUser:
		return x.user()
	case asAdmin:
		return x.admin()
	case asBystander:
		return x.bystander()
	case asRunner:
		return x.runner()
	case asOtherRunner:
		return x.otherRunner()
	}
	return loop
}

// visibility runs every method of Tx as every role of the same tenant and of
// another one. INV-9: nothing outside the caller's binding is answered, and what
// is another's is told in the words of what does not exist.
func visibility(t *testing.T, s *store.Store) {
	red, blue, nobody := build(t, s, "red"), build(t, s, "blue"), ghost("nobody")
	typ := reflect.TypeFor[*store.Tx]()
	for i := range typ.NumMethod() {
		name := typ.Method(i).Name
		p, ok := probes[name]
		if !ok {
			t.Errorf("Tx.%s has no entry in the enumeration: say who may call it", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, r := range roles {
				judge(t, s, p, r, blue.caller(r), blue, nobody, slices.Contains(p.by, r))
				if r != asLoop {
					judge(t, s, p, r+" of another tenant", red.caller(r), blue, nobody, false)
				}
			}
		})
	}
	for name := range probes {
		if _, ok := typ.MethodByName(name); !ok {
			t.Errorf("the entry %s is for no method of Tx", name)
		}
	}
}

func judge(t *testing.T, s *store.Store, p probe, r role, c store.Caller, x, nobody *side, allowed bool) {
	t.Helper()
	try := func(x *side) (found bool, err error) {
		undone(t, s, c, func(tx *store.Tx) { found, err = p.run(tx, x) })
		return found, err
	}
	found, err := try(x)
	switch {
	case p.everybody:
	case allowed && (err != nil || !found):
		t.Errorf("the %s is refused: found %v, %v", r, found, err)
	case !allowed && found:
		t.Errorf("the %s got what is another's (%v)", r, err)
	case !allowed && err != nil:
		if code := protocol.CodeOf(err); code != protocol.CodeNotFound && code != protocol.CodePermissionDenied {
			t.Errorf("the %s is refused with %q: %v", r, code, err)
		}
		if _, absent := try(nobody); r != p.knows && plain(absent) != plain(err) {
			t.Errorf("the %s can tell another's from absent:\n  another's: %v\n  absent:    %v", r, err, absent)
		}
	}
}

var names = regexp.MustCompile(`[a-z]{3}_[0-9a-z]{26}|[0-9a-f]{64}`)

// plain takes the ids and the words of a side out of a refusal.
func plain(err error) string {
	if err == nil {
		return ""
	}
	text := string(protocol.CodeOf(err)) + ": " + names.ReplaceAllString(err.Error(), "…")
	for _, n := range []string{"red", "blue", "nobody"} {
		text = strings.ReplaceAll(text, n, "…")
	}
	return text
}

// has reports that a list holds something of a side.
func has[T any](all []T, err error, of func(T) bool) (bool, error) {
	return slices.ContainsFunc(all, of), err
}

// got reports a row without an error.
func got[T any](_ T, err error) (bool, error) { return err == nil, err }

// did reports a change without an error.
func did(err error) (bool, error) { return err == nil, err }
