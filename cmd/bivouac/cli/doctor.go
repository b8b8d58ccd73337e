package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bivouac/cmd/internal/devdir"
	"bivouac/edge/finding"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
)

func (a *app) doctorCommand() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything from where it is used, and say what mends what is wrong",
		Long: `Looks at your login and the way to the server from here, and asks the server what
it and its broker stand on: database, disk, certificates, feed, paths, providers.
It works while the server is down, and says where to look then. It ends with 0
unless something does not work; with --strict also a warning counts.

On the machines themselves: bivouac-server doctor, bivouac-broker doctor,
bivouac-edge doctor.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := finding.From("here")
			if a.examineLogin(r) && a.examineServer(cmd.Context(), r) {
				a.examineMachines(cmd.Context(), r)
				a.examineDeployment(cmd.Context(), r)
			}
			return a.show(r, strict)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "fail for warnings too")
	return cmd
}

// show prints findings; their verdict is the exit code.
func (a *app) show(r *finding.Report, strict bool) error {
	err := r.Show(a.out, a.json, strict)
	if verdict := finding.Verdict(0); errors.As(err, &verdict) {
		return exitError{int(verdict)}
	}
	return err
}

// doctorTimeout bounds one question to the server.
const doctorTimeout = 30 * time.Second

const logIn = "bivouac login URL --token-file FILE"

// examineLogin checks the file that says who calls, and where.
func (a *app) examineLogin(r *finding.Report) bool {
	_, err := a.connect()
	switch {
	case protocol.CodeOf(err) == protocol.CodeUnauthenticated:
		r.Bad("login", err.Error(), "nobody knows who calls, and which server", logIn+"  (or bivouac dev, which logs in by itself)")
		return false
	case errors.Is(err, errDamaged):
		r.Bad("login", err.Error(), "it says who calls, and which server", logIn+"  (the file is written anew)")
		return false
	case err != nil:
		r.Bad("login", err.Error(), "it says who calls, and which server", protocol.Mend(err, "ls -l "+filepath.Join(a.config, loginFile)+"  (whose it is); or "+logIn))
		return false
	}
	r.Fine("login", "%s", a.login.Server)
	return true
}

// examineServer tries the way to the server, its clock and the login there.
func (a *app) examineServer(ctx context.Context, r *finding.Report) bool {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	u, err := url.Parse(a.login.Server)
	if r.Err("server", err, "the login names it", logIn) || !a.examineWay(ctx, r, u) {
		return false
	}
	who, err := a.api.Principals.WhoAmI(ctx, &apiv1.WhoAmIRequest{})
	switch code := protocol.CodeOf(err); {
	case code == protocol.CodeUnauthenticated:
		r.Bad("token", err.Error(), "the server does not know who calls", "ask an admin: bivouac principal add NAME --token-file FILE; then "+logIn)
		return false
	case err != nil:
		r.Bad("server", err.Error(), "it does not answer as it should", "bivouac-server doctor  (on its machine)")
		return false
	}
	if pin := who.GetRootFingerprint(); a.login.RootFingerprint != "" && !strings.EqualFold(pin, a.login.RootFingerprint) {
		r.Bad("root", "the server stands on the root "+pin+", and this login pins "+a.login.RootFingerprint, "credentials are sealed for the pinned root only, and another one may be an intruder's", "ask the admin which is right; then "+logIn+" --fingerprint FINGERPRINT")
	} else {
		r.Fine("token", "%s of %s, root %.12s…", who.GetPrincipal().GetName(), who.GetPrincipal().GetTenantName(), pin)
	}
	if v := who.GetServerVersion(); v != version {
		r.Warn("version", "the server is "+v+", this command is "+version, "commands of one may not exist in the other", "install the same version")
	}
	return true
}

// examineWay dials the server, and asks it for nothing but life and time.
func (a *app) examineWay(ctx context.Context, r *finding.Report, u *url.URL) bool {
	host, port := u.Hostname(), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	address := net.JoinHostPort(host, port)
	start := a.startOf(address)
	if _, err := net.DefaultResolver.LookupHost(ctx, host); err != nil {
		r.Bad("server.name", "the name "+host+" cannot be resolved: "+err.Error(), "the server is reached by it", "getent hosts "+host+"; or "+logIn)
		return false
	}
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		r.Bad("server", finding.Refused(address), "nothing works without it", finding.MendRefused(address, start))
		return false
	case err != nil:
		r.Bad("server", "TCP port "+port+" of "+host+" is blocked: "+err.Error(), "nothing works without it", "open TCP port "+port+" from here to the server (firewall, VPN or provider); or start it: "+start)
		return false
	}
	conn.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.Scheme+"://"+u.Host+"/healthz", nil)
	if r.Err("server", err, "", logIn) {
		return false
	}
	begun := time.Now()
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: a.login.trust()}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
		r.Bad("server.certificate", "the certificate of "+u.Host+" is signed by an authority that is not known here", "only a certificate that can be proven is believed", "bivouac login "+u.Scheme+"://"+u.Host+" --token-file FILE --ca CA.pem")
		return false
	}
	if named := (x509.HostnameError{}); errors.As(err, &named) {
		r.Bad("server.certificate", "the certificate of "+u.Host+" is not for "+host+": "+named.Error(), "only a certificate for the name that is called is believed",
			finding.SelfSigned(host)+"  (on the server's machine; then restart bivouac-server with --tls-cert api.crt --tls-key api.key); or bivouac login under a name that it is for")
		return false
	}
	if bad := (x509.CertificateInvalidError{}); errors.As(err, &bad) {
		r.Bad("server.certificate", "the certificate of "+u.Host+" is not good: "+bad.Error(), "only a certificate that can be proven is believed",
			"timedatectl  (whether the clock here is right); then a new one on the server's machine: "+finding.SelfSigned(host))
		return false
	}
	if err != nil {
		r.Bad("server", "port "+port+" answers, and not as this server would: "+err.Error(), "another program may listen there, or TLS is expected", otherScheme(u)+"ss -lntp  (on its machine: which program has the port)")
		return false
	}
	res.Body.Close()
	r.Fine("server", "%s answers in %s", address, time.Since(begun).Round(time.Millisecond))
	if theirs, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		r.Clock("the server", theirs, time.Now(), time.Since(begun))
	}
	return true
}

// startOf is the whole command that starts the server at an address: that of the
// bivouac dev of this machine which had it last, or what there is to look for where it
// runs.
func (a *app) startOf(address string) string {
	for _, data := range []string{filepath.Dir(a.config), defaultDevDir()} {
		if devdir.Addresses(filepath.Join(data, "server"))["public"] == address {
			return devdir.Command(data)
		}
	}
	return "bivouac dev, or bivouac-server on its machine, which starts as it was started last; bivouac-server doctor says there why it does not run"
}

// otherScheme is the login over TLS where it was in the clear, and in the clear on this
// machine alone; empty where neither could be.
func otherScheme(u *url.URL) string {
	scheme := "https"
	if u.Scheme == "https" {
		if scheme = "http"; !finding.Loopback(u.Host) {
			return ""
		}
	}
	return "bivouac login " + scheme + "://" + u.Host + " --token-file FILE; or "
}

// examineDeployment takes over what server and broker find.
func (a *app) examineDeployment(ctx context.Context, r *finding.Report) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	res, err := a.api.Operations.Diagnose(ctx, &apiv1.DiagnoseRequest{})
	switch {
	case protocol.CodeOf(err) == protocol.CodePermissionDenied:
		r.Fine("deployment", "what server and broker stand on is for their operator to ask")
	case err != nil:
		r.Bad("deployment", "the server cannot say what it stands on: "+err.Error(), "", "bivouac-server doctor  (on its machine)")
	}
	for _, f := range res.GetFindings() {
		r.Add(finding.Finding{Where: plain(f.GetWhere()), Check: plain(f.GetCheck()), Level: finding.Level(f.GetLevel()), What: harmless(f.GetWhat()), Why: harmless(f.GetWhy()), Mend: harmless(f.GetMend())})
	}
}
