package keyring

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/oklog/ulid/v2"

	"bivouac/edge/protocol"
	"bivouac/server/broker/authority"
)

const (
	contentVersion = 1
	// rotatedVersion has secret parts of grants: a broker that does not know them would
	// take old ones for good, and must not open it.
	rotatedVersion = 2
	rootTTL        = 10 * 365 * 24 * time.Hour
)

// content is the plaintext of keyring.age. Only this package sees it, and only
// seal and unseal turn it into bytes.
type content struct {
	Version     int                `json:"version"`
	BrokerID    string             `json:"broker_id"`
	RootSeed    []byte             `json:"root_seed"`
	RootCert    []byte             `json:"root_certificate"` // DER
	ReceiptSeed []byte             `json:"receipt_seed"`
	ReceiptCert []byte             `json:"receipt_certificate"`
	Seal        string             `json:"seal_identity"`
	GrantKey    []byte             `json:"grant_key"`
	Servers     []server           `json:"servers"`
	Grants      []listed           `json:"grants"`
	Credentials []storedCredential `json:"credentials"`
	Moved       *moved             `json:"moved,omitempty"`
	Restored    *restored          `json:"restored,omitempty"`

	byGrant map[protocol.GrantID]int // index into Grants
}

// index makes the content ready to be read.
func (c *content) index() {
	c.byGrant = make(map[protocol.GrantID]int, len(c.Grants))
	for i, g := range c.Grants {
		c.byGrant[g.ID] = i
	}
}

// grant finds a listed grant that is alive.
func (c *content) grant(id protocol.GrantID) (listed, error) {
	i, known := c.byGrant[id]
	if !known {
		return listed{}, protocol.Errorf(protocol.CodePermissionDenied, "grant %s is not known to this broker", id)
	}
	g := c.Grants[i]
	if !g.RevokedAt.IsZero() {
		return g, authority.Revoked(id, "")
	}
	return g, nil
}

// listed is a grant, and which secret parts of it count: the name of the rotation that
// made the one in force, empty for the first, of one that is not settled, and of those
// that are over.
type listed struct {
	authority.Grant
	Part    authority.Rotation `json:"part,omitempty"`
	Pending authority.Rotation `json:"pending,omitempty"`
	Over    authority.Over     `json:"over,omitempty"`
}

// counts reports a secret part that opens the grant.
func (l listed) counts(part authority.Rotation) bool {
	return part == l.Part || part != "" && part == l.Pending
}

// server that was enrolled: its key may come back for a new certificate.
type server struct {
	ID         string    `json:"id"`
	Thumbprint string    `json:"thumbprint"`
	EnrolledAt time.Time `json:"enrolled_at"`
}

type storedCredential struct {
	Tenant    protocol.TenantID `json:"tenant"`
	Name      string            `json:"name"`
	Value     string            `json:"value"`
	UpdatedAt time.Time         `json:"updated_at"`
}

// newContent makes every key of a deployment.
func newContent(now time.Time) (*content, error) {
	_, root, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	_, receipt, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	seal, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	c := &content{
		Version: contentVersion, BrokerID: "brk_" + strings.ToLower(ulid.MustNew(ulid.Timestamp(now), rand.Reader).String()),
		RootSeed: root.Seed(), ReceiptSeed: receipt.Seed(), Seal: seal.String(), GrantKey: make([]byte, 32),
	}
	if _, err := rand.Read(c.GrantKey); err != nil {
		return nil, err
	}
	if c.RootCert, err = rootCertificate(root, now); err != nil {
		return nil, err
	}
	parent, err := x509.ParseCertificate(c.RootCert)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Bivouac receipts"},
		NotBefore: parent.NotBefore, NotAfter: parent.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	c.ReceiptCert, err = x509.CreateCertificate(nil, template, parent, receipt.Public(), root)
	return c, err
}

func rootCertificate(key ed25519.PrivateKey, now time.Time) ([]byte, error) {
	t := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "Bivouac root"},
		NotBefore:             now.Add(-24 * time.Hour),
		NotAfter:              now.Add(rootTTL),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	return x509.CreateCertificate(nil, t, t, key.Public(), key)
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return n.Add(n, big.NewInt(1))
}

// seal encrypts the content for the identity file.
func (c *content) seal(to ...age.Recipient) ([]byte, error) {
	sealed := *c // readers never wait
	c = &sealed
	c.Version = contentVersion
	if slices.ContainsFunc(c.Grants, func(l listed) bool { return l.Part != "" || l.Pending != "" }) {
		c.Version = rotatedVersion
	}
	plain, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return encrypt(plain, to...)
}

// unseal decrypts and checks that nothing is missing.
func unseal(sealed []byte, with age.Identity) (*content, error) {
	plain, err := decrypt(sealed, with, maxKeyring)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	var c content
	if err := json.Unmarshal(plain, &c); err != nil {
		return nil, protocol.Errorf(protocol.CodeDataLoss, "its content cannot be read")
	}
	return &c, c.whole()
}

// whole refuses a content that this broker cannot stand on.
func (c *content) whole() error {
	switch {
	case c.Version < contentVersion || c.Version > rotatedVersion:
		return protocol.Errorf(protocol.CodeIncompatible, "it has version %d, this broker reads %d to %d: use the broker that wrote it", c.Version, contentVersion, rotatedVersion)
	case len(c.RootSeed) != ed25519.SeedSize || len(c.ReceiptSeed) != ed25519.SeedSize || len(c.GrantKey) != 32 || c.BrokerID == "":
		return protocol.Errorf(protocol.CodeDataLoss, "keys are missing in it")
	}
	return nil
}
