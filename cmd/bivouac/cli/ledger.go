package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"bivouac/edge/durable"
	"bivouac/edge/protocol"
	"bivouac/server/api/apiv1"
	"bivouac/server/api/client"
	"bivouac/server/ledger"
)

func (a *app) ledgerCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "ledger",
		Short: "The sealed record: export it, and prove it without a server",
		Long: `What happens is sealed: the chains of events are leaves of a Merkle tree, and its
head is signed by the broker's receipt key. An exported file proves itself against
the root's fingerprint; an altered byte is found, and named.`,
	}, a.ledgerShow(), a.ledgerExport(), a.ledgerVerify())
}

func (a *app) ledgerExport() *cobra.Command {
	var session, out string
	cmd := &cobra.Command{
		Use:   "export --out FILE",
		Short: "Write your sealed events with their proofs into a file",
		Long: `Writes what is sealed of your sessions, or of one, with the proofs that lead to the
signed head. Events hold no payload, only its salted digest. What happened in the
last seconds may not be sealed yet: bivouac ledger show.`,
		Example: "  bivouac ledger export --out record.ledger\n  bivouac ledger verify record.ledger",
		Args:    cobra.NoArgs,
		RunE: a.call(func(ctx context.Context, c *client.Client, _ []string) error {
			if out == "" {
				return protocol.Errorf(protocol.CodeInvalidArgument, "name the file that is written: --out FILE")
			}
			n, err := exportTo(ctx, c, session, out)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"file": out, "bytes": n})
			}
			fmt.Fprintf(a.out, "%s: %d bytes; prove it anywhere: bivouac ledger verify %s --fingerprint %s\n", out, n, out, a.login.RootFingerprint)
			return nil
		}),
	}
	cmd.Flags().StringVar(&session, "session", "", "only this session")
	cmd.Flags().StringVar(&out, "out", "", "the file; 0600, replaced when it is whole")
	return cmd
}

// exportTo replaces a file only with a whole export.
func exportTo(ctx context.Context, c *client.Client, session, path string) (n int64, err error) {
	err = durable.Write(path, 0o600, func(w io.Writer) error {
		counted := &counter{w: w}
		err := c.ExportLedger(ctx, session, counted)
		n = counted.n
		return err
	})
	if errors.As(err, new(*fs.PathError)) {
		err = protocol.Errorf(protocol.CodeFailedPrecondition, "%s cannot be written: %w; make room, or name another file with --out", path, err)
	}
	return n, err
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

func (a *app) ledgerVerify() *cobra.Command {
	var fingerprint string
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Prove an exported file, or a receipt, without a server",
		Long: `Proves every event by its chain, every segment by its proof, and the signed head by
the root that your login pins; --fingerprint names it where there is no login. The
first thing that does not hold is said, with its line and its event. A receipt of
bivouac revoke --receipt is proven by the same root, and what it says is printed.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if jws, ok := receiptIn(args[0]); ok {
				return a.verifyReceipt(args[0], jws, fingerprint)
			}
			begun := time.Now()
			sum, err := a.verifyFile(args[0], fingerprint, nil)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"events": sum.Events, "segments": sum.Segments, "sessions": sum.Sessions,
					"ledger_size": sum.Head.Size, "tenant": sum.Head.Tenant, "signed_at": sum.Head.At})
			}
			fmt.Fprintf(a.out, "%s holds: %d events in %d segments of %d sessions, of a ledger of %d segments signed %s (%s)\n",
				args[0], sum.Events, sum.Segments, sum.Sessions, sum.Head.Size, sum.Head.At.Local().Format(time.RFC1123), time.Since(begun).Round(time.Millisecond))
			return nil
		},
	}
	cmd.Flags().StringVar(&fingerprint, "fingerprint", "", "of the root that is trusted (default: that of your login)")
	return cmd
}

// trusted is the fingerprint that was given, or that of the login.
func (a *app) trusted(fingerprint string) (string, error) {
	if fingerprint != "" {
		return fingerprint, nil
	}
	l, err := readLogin(a.config)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeInvalidArgument, "nobody said which root is trusted: give --fingerprint, or log in (%w)", err)
	}
	return l.RootFingerprint, nil
}

func (a *app) verifyFile(path, fingerprint string, each func(ledger.Event) error) (ledger.Summary, error) {
	fingerprint, err := a.trusted(fingerprint)
	if err != nil {
		return ledger.Summary{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return ledger.Summary{}, protocol.Errorf(protocol.CodeInvalidArgument, "%w; name a file of bivouac ledger export", err)
	}
	defer f.Close()
	return ledger.Verify(f, fingerprint, each)
}

func (a *app) ledgerShow() *cobra.Command {
	var fingerprint string
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "How far the ledger is sealed, or the events of an exported file",
		Long: `Without a file: the size of your tenant's ledger, when its head was signed, and how
many of your events are not sealed yet. With a file: its events, proven on the way,
without a server.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				_, err := a.verifyFile(args[0], fingerprint, a.showSealed)
				return err
			}
			return a.call(a.showLedger)(cmd, args)
		},
	}
	cmd.Flags().StringVar(&fingerprint, "fingerprint", "", "of the root that is trusted (default: that of your login)")
	return cmd
}

func (a *app) showLedger(ctx context.Context, c *client.Client, _ []string) error {
	res, err := c.Ledger.GetLedger(ctx, &apiv1.GetLedgerRequest{})
	if err != nil {
		return err
	}
	return a.print(res, func(w io.Writer) {
		if res.GetHead() == "" && res.GetRefused() == "" {
			fmt.Fprintf(w, "%d segments are sealed and not signed yet: that needs the broker\n", res.GetSize())
		} else if res.GetHead() != "" {
			fmt.Fprintf(w, "%d segments are sealed, root %x, signed %s\n", res.GetSize(), res.GetRoot(), ago(res.GetSignedAt()))
		}
		fmt.Fprintf(w, "%d of your events are not sealed yet\n", res.GetUnsealedEvents())
		if res.GetRefused() != "" {
			fmt.Fprintf(w, "what is sealed since is not signed: %s\n", res.GetRefused())
		}
	})
}

// showSealed prints one proven event.
func (a *app) showSealed(e ledger.Event) error {
	if a.json {
		return a.printJSON(json.RawMessage(e.Stored))
	}
	_, err := fmt.Fprintf(a.out, "%s %5d  %x  %s\n", e.Session, e.Seq, e.Hash[:6], clip(string(e.Stored), 400))
	return err
}
