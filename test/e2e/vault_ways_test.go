//go:build linux

package e2e

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

// endWay is how a grant ends. Every command is one that the operator's guide shows, run
// by the server's own command line.
type endWay struct {
	name string
	why  string // what the grant says of its end
	// known reads beforehand what the command needs, so that it runs at once.
	known func(*ending) string
	// command of the admin, by what is known; nil: the person's own, or nobody does
	// anything.
	command func(c *ending, known string) []string
	// before and after are commands of the admin around the row, whose grants then end by
	// themselves, at the time that is known.
	before, after []string
	// whole: the first one ends all grants of its person.
	whole bool
	// everybody: it ends also those of other people.
	everybody bool
}

const revokedInVault = "its token was revoked in the server"

var (
	byAccessor = endWay{name: "accessor", why: revokedInVault, known: (*ending).accessor, command: func(_ *ending, accessor string) []string {
		return []string{"token", "revoke", "-accessor", accessor}
	}}
	byTree = endWay{name: "tree", why: revokedInVault, known: (*ending).token, command: func(_ *ending, token string) []string {
		return []string{"token", "revoke", token}
	}}
	byOrphan = endWay{name: "orphan mode", why: revokedInVault, known: (*ending).token, command: func(_ *ending, token string) []string {
		return []string{"token", "revoke", "-mode=orphan", token}
	}}
	byEntity = endWay{name: "entity disabled", why: "the entity of its person is disabled", whole: true, known: (*ending).entity, command: func(_ *ending, entity string) []string {
		return []string{"write", "identity/entity/id/" + entity, "disabled=true"}
	}}
	byExpiry = endWay{name: "expiry", why: "its token's time was over, which had an end of its own", known: (*ending).accessor,
		before: []string{"write", grantRole, "token_explicit_max_ttl=" + ownTime.String()}, after: []string{"write", grantRole, "token_explicit_max_ttl=0"}}
	byIndex = endWay{name: "KV index", why: "its entry in the index was deleted", command: func(c *ending, _ string) []string {
		return []string{"kv", "delete", c.index()}
	}}
	byPerson = endWay{name: "`bivouac revoke`", why: "measured"}
	byPrefix = endWay{name: "lease prefix", why: "it ended at the authority: its token", whole: true, everybody: true, command: func(*ending, string) []string {
		return []string{"lease", "revoke", "-prefix", "auth/token/create/bivouac-grant/"}
	}}
)

const grantRole = "auth/token/roles/bivouac-grant"

// ownTime of a grant that ends by itself: all works are under way before it is over, and
// none has come to a limit of its own: a minute for a command, 500 calls of the model.
const ownTime = 50 * time.Second

// lastTime of it, in which it is looked up when exactly it is over: each renewal moves
// that by a part of a second, and none comes any more.
const lastTime = 15 * time.Second

// admin runs one command as the admin; none: nothing.
func (m *ends) admin(t *testing.T, args []string) string {
	t.Helper()
	if len(args) == 0 {
		return ""
	}
	out, err := m.vault.Admin(context.WithoutCancel(t.Context()), args...) // also in a cleanup
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *ending) admin(args ...string) string {
	c.person.t.Helper()
	return c.person.ends.admin(c.person.t, args)
}

func (c *ending) index() string { return "bivouac-grants/" + c.person.id + "/" + c.grant }

func (c *ending) accessor() string { return c.admin("kv", "get", "-field=accessor", c.index()) }

// lookup is what the server says of the grant's token.
func (c *ending) lookup(accessor, field string) string {
	c.person.t.Helper()
	var said struct{ Data map[string]any }
	if err := json.Unmarshal([]byte(c.admin("token", "lookup", "-format=json", "-accessor", accessor)), &said); err != nil {
		c.person.t.Fatal(err)
	}
	text, _ := said.Data[field].(string)
	return text
}

func (c *ending) entity() string { return c.lookup(c.accessor(), "entity_id") }

// expires is when the time of the grant's token is over.
func (c *ending) expires(accessor string) time.Time {
	c.person.t.Helper()
	at, err := time.Parse(time.RFC3339Nano, c.lookup(accessor, "expire_time"))
	if err != nil {
		c.person.t.Fatal(err)
	}
	return at
}

// token of the grant, which the broker alone opens; whoever administers the server and
// has the server's database can too.
func (c *ending) token() string {
	t := c.person.t
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+c.person.Path("server", "bivouac.db")+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var sealed []byte
	if err := db.QueryRowContext(t.Context(), "SELECT sealed FROM grants WHERE id = ?", c.grant).Scan(&sealed); err != nil || len(sealed) < 6 {
		t.Fatalf("the sealed grant: %d bytes, %v", len(sealed), err)
	}
	text := base64.StdEncoding.EncodeToString([]byte("bivouac grant v1 " + c.grant))
	plain, err := base64.StdEncoding.DecodeString(c.admin("write", "-field=plaintext", "bivouac-transit/decrypt/u-"+c.person.id, "associated_data="+text,
		fmt.Sprintf("ciphertext=vault:v%d:%s", binary.BigEndian.Uint32(sealed[1:5]), base64.StdEncoding.EncodeToString(sealed[5:]))))
	var opened struct{ Token string }
	if err == nil {
		err = json.Unmarshal(plain, &opened)
	}
	if err != nil || opened.Token == "" {
		t.Fatalf("the opened grant holds no token: %v", err)
	}
	return opened.Token
}

// end ends the grant and sets the time from which nothing may happen under it.
func (c *ending) end(w endWay, known string) {
	c.person.t.Helper()
	if w.command != nil {
		c.admin(w.command(c, known)...)
		c.over = time.Now()
		return
	}
	if w.before != nil {
		pause(c.person.t.Context(), time.Until(c.made.Add(ownTime-lastTime)))
		c.over = c.expires(known)
		return
	}
	c.person.must("revoke", c.grant, "--reason", "measured")
	c.over = c.state().GetRevokedAt().AsTime() // the command waits for all that follows
}
