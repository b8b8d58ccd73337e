package edge

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"bivouac/edge/device"
	"bivouac/edge/durable"
	"bivouac/edge/identity"
	"bivouac/edge/link"
	"bivouac/edge/owner"
	"bivouac/edge/protocol"
	"bivouac/edge/protocol/runnerv1"
	"bivouac/edge/protocol/runnerv1/runnerv1connect"
	"bivouac/edge/sandbox"
	"bivouac/edge/state"
)

// DefaultPort of a server's runner listener.
const DefaultPort = "7401"

// JoinParams of Join.
type JoinParams struct {
	Server string // https://host:port, as the invitation says
	Code   string
	// Workload enrols in place of a code; its zero value is none.
	Workload Workload
	Name     string // empty: the one that the invitation gives
	State    string // directory
	Policy   owner.Policy
	// Network for the link; the zero value is the machine's own.
	Network link.Network
	Version string
}

// Join makes this machine a runner: it reads the code here, meets the server
// that the code names (by fingerprint, so that no clock is needed), stores what
// it gets, and ends only after an authenticated round trip. It may be repeated
// with the same code when it broke off.
func Join(ctx context.Context, p JoinParams) (joined state.Enrolment, err error) {
	var none state.Enrolment
	by, err := p.invitation()
	if err != nil {
		return none, err
	}
	address, err := serverAddress(p.Server)
	if err != nil {
		return none, err
	}
	if err := resolves(ctx, p.Network, address); err != nil {
		return none, err
	}
	dir, err := state.Create(p.State)
	if err != nil {
		return none, err
	}
	defer func() {
		if protocol.CodeOf(err) == protocol.CodeInternal { // a file could not be written
			err = onFullDisk(dir, err)
		}
	}()
	if err := notYet(dir); err != nil { // also while it runs
		return none, err
	}
	release, err := dir.Lock()
	if err != nil {
		return none, err
	}
	defer release()
	if err := notYet(dir); err != nil {
		return none, err
	}
	policy, written, err := joinPolicy(dir, p.Policy)
	if err != nil {
		return none, err
	}
	defer func() {
		if err != nil && written { // the corrected command writes its own
			os.Remove(dir.Policy())
		}
	}()
	e, err := enrol(ctx, p, dir, address, by)
	if err != nil {
		return none, wrongPort(address, err)
	}
	if err := roundTrip(ctx, p, dir, e, policy); err != nil {
		return none, err
	}
	if err := keepPolicy(dir); err != nil {
		return none, err
	}
	return e, dir.SaveEnrolment(e)
}

// keepPolicy keeps edge.hcl as good, so that one that is lost before the first start is
// missed too.
func keepPolicy(dir *state.Dir) error {
	src, err := os.ReadFile(dir.Policy())
	if err != nil {
		return err
	}
	return dir.SaveGoodPolicy(src)
}

// notYet refuses the directory of a runner. One without its key is none that can leave.
func notYet(dir *state.Dir) error {
	e, err := dir.Enrolment()
	if !dir.Joined() || err != nil {
		return nil
	}
	leave := dir.Command("leave")
	if !dir.HasKey() {
		leave = dir.Command("leave --force")
	}
	return protocol.Errorf(protocol.CodeAlreadyExists,
		"%s is already the runner %s of %s: use another directory with --state, or run `%s` first", dir.Path(), strings.TrimSpace(e.Name+" "+e.Runner.String()), e.Server, leave)
}

// serverAddress reads what a person typed: https://host:port or host:port.
func serverAddress(text string) (string, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "%q is no server address: write https://host:%s as the invitation says", text, DefaultPort)
	}
	if u.Scheme != "https" {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "a runner speaks TLS only, on a port of its own: write https://%s, or the address that the invitation says", net.JoinHostPort(u.Hostname(), DefaultPort))
	}
	port := u.Port()
	if port == "" {
		port = DefaultPort
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// joinPolicy checks the flags as a file would be checked, and writes edge.hcl
// unless its owner already has one: then that one holds.
func joinPolicy(dir *state.Dir, p owner.Policy) (_ owner.Policy, written bool, err error) {
	if _, err := os.Stat(dir.Policy()); err == nil {
		if len(p.Folders)+len(p.Toolchains) > 0 {
			return p, false, protocol.Errorf(protocol.CodeAlreadyExists, "%s is there already: add the folders to it, or remove it", dir.Policy())
		}
		p, err = owner.Load(dir.Policy(), dir.Path())
		return p, false, err
	}
	if err := owner.CheckFlags(p, dir.Path()); err != nil {
		return p, false, err
	}
	return p, true, durable.Replace(dir.Policy(), owner.Render(p), 0o600)
}

// enrol meets the server of the code and stores key, certificate and root.
func enrol(ctx context.Context, p JoinParams, dir *state.Dir, address string, by invitation) (state.Enrolment, error) {
	var none state.Enrolment
	key, err := dir.Key(true)
	if err != nil {
		return none, err
	}
	introduction, err := identity.SelfSigned(key, time.Now())
	if err != nil {
		return none, err
	}
	client, err := link.NewClient(link.Config{
		Address:     address,
		Trust:       link.Trust{Role: identity.RoleServer, Fingerprint: by.fingerprint},
		Certificate: func() (*tls.Certificate, error) { return &introduction, nil },
		Network:     p.Network,
	})
	if err != nil {
		return none, err
	}
	defer client.Close()
	rpc := runnerv1connect.NewRunnerServiceClient(client, client.URL())
	res, err := call(ctx, rpc.Enroll, &runnerv1.EnrollRequest{
		Code: by.code, WorkloadIdentity: by.workload, Name: p.Name, CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
	})
	if err != nil {
		return none, err
	}
	id, err := store(dir, key, by.fingerprint, res)
	if err != nil {
		return none, err
	}
	return state.Enrolment{
		Server: address, Broker: res.GetBrokerAddress(), Name: p.Name, Runner: id,
		Tenant: protocol.TenantID(res.GetTenantId()), Owner: protocol.PrincipalID(res.GetOwnerPrincipalId()),
	}, nil
}

// store keeps what the server gave after a check that it belongs together: the
// root of the invitation, a chain under it, of this key, under this key's identity.
func store(dir *state.Dir, key ed25519.PrivateKey, fingerprint string, res *runnerv1.EnrollResponse) (protocol.RunnerID, error) {
	roots, err := identity.ParsePEM(res.GetRootCertificate())
	if err != nil {
		return "", err
	}
	chain, err := identity.ParsePEM(res.GetCertificateChain())
	if err != nil {
		return "", err
	}
	if identity.Fingerprint(roots[0]) != fingerprint {
		return "", protocol.Errorf(protocol.CodeUnauthenticated, "the server handed out another root than the invitation names: ask its owner for a new one")
	}
	if _, err := identity.VerifyChain(chain, roots[0], chain[0].NotBefore); err != nil {
		return "", protocol.Errorf(protocol.CodeUnauthenticated, "the certificate that the server gave does not hang from its root: %w", err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	id := identity.RunnerID(spki)
	if res.GetRunnerId() != id.String() {
		return "", protocol.Errorf(protocol.CodeUnauthenticated, "the server named this machine %s, its key says %s", res.GetRunnerId(), id)
	}
	if err := dir.SaveCertificate(res.GetCertificateChain()); err != nil {
		return "", err
	}
	return id, dir.SaveRoot(roots[0])
}

// roundTrip proves the certificate and the whole way: the server takes this
// machine's connection and speaks on its stream. Then it is let go again.
func roundTrip(ctx context.Context, p JoinParams, dir *state.Dir, e state.Enrolment, policy owner.Policy) error {
	client, err := dialler(dir, e.Server, p.Network)
	if err != nil {
		return err
	}
	defer client.Close()
	actions, err := device.New(policy.Folders, dir.Path())
	if err != nil {
		return err
	}
	facts := factsOf(policy, sandbox.Report{Problem: protocol.NotRunYet})
	facts.Slots, facts.Version, facts.Actions = 0, p.Version, actions.Actions()
	take, err := dir.Taking()
	if err != nil {
		return err
	}
	rpc := runnerv1connect.NewRunnerServiceClient(client, client.URL())
	res, err := call(ctx, rpc.Connect, &runnerv1.ConnectRequest{
		CapabilityVersion: protocol.Current(), OldestCapabilityVersion: protocol.Oldest(),
		BootNonce: "join", LastEpoch: take.LastEpoch, LastNonce: take.LastNonce, TakeNonce: take.Nonce, Facts: facts,
	})
	if err == nil {
		err = firstWord(ctx, rpc, res)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeOf(err), "the machine was enrolled, but the server did not take its first call: %w; repeat the same command", err)
	}
	return dir.Taken(take, res.GetEpoch())
}

// firstWord attaches until the server has said something. Nothing is taken from
// the mailbox.
func firstWord(ctx context.Context, rpc runnerv1connect.RunnerServiceClient, res *runnerv1.ConnectResponse) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, protocol.Errorf(protocol.CodeUnavailable, "the server took the connection and said nothing for %s", callTimeout))
	defer cancel()
	stream, err := rpc.Attach(ctx, &runnerv1.AttachRequest{Epoch: res.GetEpoch(), Cursor: max(0, res.GetMailboxCursor()-1)})
	if err != nil {
		return protocol.FromConnect(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return protocol.FromConnect(stream.Err())
	}
	return nil
}

// onFullDisk is a file that could not be written because the disk is full, said as
// that; any other error stays as it is.
func onFullDisk(dir *state.Dir, err error) error {
	if !durable.IsFull(err) {
		return err
	}
	return protocol.Errorf(protocol.CodeFailedPrecondition, "the state directory %s cannot be written: %w", dir.Path(), durable.Full(dir.Path(), err))
}
