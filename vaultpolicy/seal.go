package vaultpolicy

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strconv"
	"strings"
	"sync"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
	"bivouac/server/broker/secret"
	"bivouac/vaultpolicy/client"
)

// sealedForm is the first byte of what is sealed here: then come the version of the
// key and the ciphertext as bytes, so that no two texts stand for one ciphertext.
const sealedForm = 1

const maxSealed = 64 << 10

// opened is what is inside of a sealed grant.
type opened struct {
	grant authority.Grant
	token secret.Value
	// part is the rotation that made it, and accessor that of its token; empty in the
	// first of a grant.
	part     authority.Rotation
	accessor string
}

// plain is its form.
type plain struct {
	Grant authority.Grant `json:"grant"`
	Token string          `json:"token"`

	Part     authority.Rotation `json:"part,omitempty"`
	Accessor string             `json:"accessor,omitempty"`
}

// personKey is the transit key of a person. Deleting it makes every grant of theirs
// unreadable.
func (v *Vault) personKey(p protocol.PrincipalID) string { return "u-" + p.String() }

// bind ties a ciphertext to its grant.
func bind(id protocol.GrantID) string {
	return base64.StdEncoding.EncodeToString([]byte("bivouac grant v1 " + id.String()))
}

// seal encrypts a grant with the key of its person, which the first one makes.
func (v *Vault) seal(ctx context.Context, o opened) ([]byte, error) {
	text, err := json.Marshal(plain{o.grant, o.token.Reveal(), o.part, o.accessor})
	if err != nil {
		return nil, err
	}
	defer clear(text)
	a, err := v.write(ctx, "seal a grant", v.names.Transit+"/encrypt/"+v.personKey(o.grant.Principal), map[string]any{
		"plaintext": base64.StdEncoding.EncodeToString(text), "associated_data": bind(o.grant.ID),
	})
	if err != nil {
		return nil, err
	}
	sealed, err := packSealed(client.Text(a.Data["ciphertext"]))
	if err == nil {
		v.openGrants.put(sha256.Sum256(sealed), o)
	}
	return sealed, err
}

// open decrypts a sealed grant, or finds it open.
func (v *Vault) open(ctx context.Context, u authority.Use) (opened, error) {
	foreign := denied("the sealed grant was not made by this broker's server")
	if len(u.Sealed) > maxSealed {
		return opened{}, foreign
	}
	digest := sha256.Sum256(u.Sealed)
	if o, ok := v.openGrants.get(digest); ok {
		return o, nil
	}
	text, ok := unpackSealed(u.Sealed)
	if !ok {
		return opened{}, foreign
	}
	a, err := v.write(ctx, "open a grant", v.names.Transit+"/decrypt/"+v.personKey(u.Principal), map[string]any{
		"ciphertext": text, "associated_data": bind(u.Grant),
	})
	if k := client.KindOf(err); k == client.Invalid || k == client.Absent {
		return opened{}, foreign
	}
	if err != nil {
		return opened{}, err
	}
	raw, err := base64.StdEncoding.DecodeString(client.Text(a.Data["plaintext"]))
	if err != nil {
		return opened{}, foreign
	}
	defer clear(raw)
	var p plain
	if err := json.Unmarshal(raw, &p); err != nil {
		return opened{}, foreign
	}
	token, err := secret.New(p.Token)
	if err != nil {
		return opened{}, foreign
	}
	o := opened{p.Grant, token, p.Part, p.Accessor}
	v.openGrants.put(digest, o)
	return o, nil
}

// packSealed makes bytes of transit's text, such as "vault:v1:…".
func packSealed(text string) ([]byte, error) {
	part := strings.SplitN(text, ":", 3)
	if len(part) == 3 && part[0] == "vault" && strings.HasPrefix(part[1], "v") {
		version, err := strconv.ParseUint(part[1][1:], 10, 32)
		body, err2 := base64.StdEncoding.DecodeString(part[2])
		if err == nil && err2 == nil && version > 0 && len(body) > 0 {
			out := binary.BigEndian.AppendUint32([]byte{sealedForm}, uint32(version))
			return append(out, body...), nil
		}
	}
	return nil, protocol.Errorf(protocol.CodeInternal, "the server sealed a grant in a form that is not known")
}

// unpackSealed makes transit's text again.
func unpackSealed(b []byte) (string, bool) {
	if len(b) < 6 || b[0] != sealedForm {
		return "", false
	}
	version := binary.BigEndian.Uint32(b[1:5])
	if version == 0 {
		return "", false // the server would take it for the first
	}
	return "vault:v" + strconv.FormatUint(uint64(version), 10) + ":" + base64.StdEncoding.EncodeToString(b[5:]), true
}

// maxOpen bounds how many grants are kept open.
const maxOpen = 4096

// cache of open grants, by the digest of what they were sealed as. The one that was
// not used for longest goes first.
type cache struct {
	mu    sync.Mutex
	order *list.List // of cached; newest first
	byKey map[[sha256.Size]byte]*list.Element
	most  int
}

type cached struct {
	key [sha256.Size]byte
	opened
}

func newCache(most int) *cache {
	return &cache{order: list.New(), byKey: map[[sha256.Size]byte]*list.Element{}, most: most}
}

func (c *cache) get(key [sha256.Size]byte) (opened, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[key]
	if !ok {
		return opened{}, false
	}
	c.order.MoveToFront(e)
	return e.Value.(cached).opened, true
}

func (c *cache) put(key [sha256.Size]byte, o opened) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byKey[key]; ok {
		return
	}
	c.byKey[key] = c.order.PushFront(cached{key, o})
	if c.order.Len() > c.most {
		c.dropLocked(c.order.Back())
	}
}

// drop everything of one grant.
func (c *cache) drop(id protocol.GrantID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.order.Front(); e != nil; {
		next := e.Next()
		if e.Value.(cached).grant.ID == id {
			c.dropLocked(e)
		}
		e = next
	}
}

func (c *cache) dropLocked(e *list.Element) {
	delete(c.byKey, e.Value.(cached).key)
	c.order.Remove(e)
}
