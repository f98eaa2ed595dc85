package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// CertCommand returns `lofamoctl cert`.
func CertCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cert list|revoke|unrevoke|restore",
		Short: "Show when certificates expire, and revoke certificates",
		Long: `Shows when certificates expire, and changes the list of revoked certificates.

An operator signs the list. It reaches supervisors, nodes, links, gossip and executor processes within seconds, and
stays in force across restarts.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return command.Usagef("cert %s: want list, revoke, unrevoke or restore", strings.Join(args, " "))
		},
	}
	cmd.AddCommand(certListCommand(a), certRevokeCommand(a), certUnrevokeCommand(a), certRestoreCommand(a))
	return cmd
}

func certListCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Certificates in the order in which they expire, and the revocations",
		Long: `Lists the newest certificate of each identity that a supervisor has verified since it started, the first to expire first,
and below them all revocations. The row "issuer" is the certificate with which supervisors renew those of nodes; no
renewed certificate outlives it. "earlier issuer" is the status of a certificate that a former issuer signed.
Before 'cluster rotate-keys --step remove', wait until the list shows both halves of every node, and none as "earlier
issuer".`,
		Args: command.Exactly(),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var ca string
		return command.Query(a, cmd, "list certificates", o,
			func(ctx context.Context, s command.Session) (*lofamov1.ListCertificatesResponse, error) {
				_, _, ca = operatorKeys(s)
				return s.ListCertificates(ctx)
			}, func(resp *lofamov1.ListCertificatesResponse) error {
				if err := a.Table(certificateRows(a, slices.Concat(resp.GetIssuers(), resp.GetCertificates()))); err != nil {
					return err
				}
				if lost := lostRevocations(resp); lost != "" {
					a.Warnf("lofamoctl: %s\n", lost)
				}
				if len(resp.GetList().GetDenials()) == 0 {
					a.Printf("\nno certificate is revoked\n")
					return nil
				}
				warnOfFormer(a, ca, resp.GetSigned().GetCertificate())
				a.Printf("\nrevocations, version %d:\n", resp.GetList().GetVersion())
				return a.Table(denialRows(a, resp.GetList().GetDenials()))
			})
	}
	return cmd
}

// lostRevocations returns a warning if a node has a newer list of revocations than the supervisors, as after a restore of their store, and
// otherwise "".
func lostRevocations(resp *lofamov1.ListCertificatesResponse) string {
	stored, nodes := resp.GetList().GetVersion(), resp.GetNextVersion()-1
	if resp.GetNextVersion() == 0 || nodes <= stored {
		return ""
	}
	return fmt.Sprintf("a node has version %d of the revocations, and the supervisors have version %d: if their store was restored, run "+
		"`lofamoctl cert restore FILE` before any other change, with a copy of the file `"+pki.DenyListFile+"` in a node's state directory",
		nodes, stored)
}

// signAgain is a command that re-signs the list of revoked certificates. Any change re-signs the whole list, so it revokes a name that does
// not exist.
const signAgain = "lofamoctl cert revoke viewer/none --reason 'sign the list again'"

// warnOfFormer warns if a list's signer has a certificate of an authority that a change of keys replaces. The change's last step ends the
// list.
func warnOfFormer(a *command.App, ca string, signer []byte) {
	newest, err := pki.IsOfNewest(ca, signer)
	if err != nil || newest {
		return // a bad file has ended the command before
	}
	a.Warnf("lofamoctl: the list of revocations was signed under an earlier authority, and becomes void with 'cluster rotate-keys --step "+
		"remove'. Before that step, sign it again with an operator's certificate of the new authority: %s\n", signAgain)
}

// certificateRows sorts the list.
func certificateRows(a *command.App, list []*lofamov1.Certificate) [][]string {
	slices.SortStableFunc(list, func(x, y *lofamov1.Certificate) int {
		return cmp.Or(x.GetNotAfter().AsTime().Compare(y.GetNotAfter().AsTime()), strings.Compare(x.GetIdentity(), y.GetIdentity()))
	})
	rows := [][]string{{"IDENTITY", "STATUS", "ENDS", "IN", "SERIAL"}}
	now := time.Now()
	for _, c := range list {
		name, state := c.GetIdentity(), "good"
		if id, err := pki.ParseIdentity(name); err == nil {
			name = pki.WebSubject(id)
		} else if strings.HasSuffix(name, "/issuer") {
			name = "issuer"
		}
		end := c.GetNotAfter().AsTime()
		switch life := end.Sub(c.GetNotBefore().AsTime()); {
		case c.GetRevoked():
			state = "revoked"
		case !end.After(now):
			state = "ended"
		case c.GetOutdated():
			state = "earlier issuer"
		case end.Sub(now) < life/3:
			state = "ends soon"
		}
		rows = append(rows, []string{name, state, command.Minute(a, end), roughDays(end.Sub(now)), c.GetSerial()})
	}
	return rows
}

// roughDays formats the remaining life of a certificate.
func roughDays(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < 48*time.Hour:
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

func denialRows(a *command.App, list []*lofamov1.Denial) [][]string {
	rows := [][]string{{"IDENTITY", "REVOKES", "SINCE", "BY", "REASON"}}
	for _, d := range list {
		what := "serial " + d.GetSerial()
		if d.GetSerial() == "" {
			what = "issued until " + command.Minute(a, d.GetRevoked().AsTime())
			if cut := d.GetBefore().AsTime(); !(pki.Denial{Before: cut, Revoked: d.GetRevoked().AsTime()}).All() { // restored, or --begins-before
				what = "begun before " + command.Minute(a, cut)
			}
		}
		rows = append(rows, []string{d.GetRole() + "/" + d.GetName(), what, command.Minute(a, d.GetRevoked().AsTime()), d.GetBy(), d.GetReason()})
	}
	return rows
}

func certRevokeCommand(a *command.App) *cobra.Command {
	var reason, serial, before string
	cmd := &cobra.Command{
		Use:   "revoke ROLE/NAME... --reason REASON",
		Short: "Revoke the certificates of nodes, supervisors, executor processes or people: all or none",
		Long: `Revokes every certificate that an identity has now. A certificate that the cluster's authority issues afterwards is
valid: give the node new keys, and no other step is needed. The revocation takes its time from the latest of this
machine's clock and the supervisors' clocks.

node/NODE stands for both halves of a node, which are revoked together. The command refuses one half alone: the other
would speak for the node, and links that work would be called FAILED.

While a node is revoked, it is UNKNOWN by rule "revoked": no member accepts its messages, it has no vote, and its
silence is no fault.`,
		Example: "  lofamoctl cert revoke node/n1-0-1 --reason 'disk was sold'\n  lofamoctl cert revoke operator/alice --reason 'left'",
		Args:    someIdentities,
	}
	cmd.Flags().StringVar(&reason, "reason", "", fmt.Sprintf("why, for people: 1 to %d bytes", pki.MaxDenialReason))
	cmd.Flags().StringVar(&serial, "serial", "", "revoke only the certificate of this serial number, in hexadecimal; not for nodes and "+
		"supervisors")
	cmd.Flags().StringVar(&before, "begins-before", "", "revoke certificates that begin before this time (RFC 3339); for authorities that "+
		"do not date back certificates by two hours as lofamoctl does")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strings.TrimSpace(reason) == "" {
			return command.Usagef("--reason is missing: want a few words that say why")
		}
		if err := checkSerial(serial, args); err != nil {
			return err
		}
		var cut time.Time
		if before != "" {
			var err error
			if cut, err = time.Parse(time.RFC3339, before); err != nil {
				return command.Usagef("--begins-before: given %q: want a time such as 2026-01-31T12:00:00Z", before)
			}
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			return changeDenials(ctx, a, s, args, revocation(a, reason, serial, cut), "revoked")
		})
	}
	return cmd
}

// denialsChange derives a new list of revoked certificates from the present one.
type denialsChange func(ids []pki.Identity, by string, was *lofamov1.ListCertificatesResponse) ([]*lofamov1.Denial, error)

// revocation revokes certificates of identities: that of a serial number, those that begin before a time, or, with neither, all that
// exist now.
func revocation(a *command.App, reason, serial string, cut time.Time) denialsChange {
	return func(ids []pki.Identity, by string, was *lofamov1.ListCertificatesResponse) ([]*lofamov1.Denial, error) {
		at := a.Env.Now()
		if cut.IsZero() && serial == "" {
			var err error
			if at, err = revokedAt(a, was); err != nil {
				return nil, err
			}
			cut = pki.CutOff(at)
		}
		now, list := timestamppb.New(at), was.GetList().GetDenials()
		for _, id := range ids {
			d := &lofamov1.Denial{Role: string(id.Role), Name: id.Name, Serial: strings.ToLower(serial), Revoked: now, By: by, Reason: reason}
			if serial == "" {
				d.Before = timestamppb.New(cut)
			}
			list = slices.DeleteFunc(list, func(o *lofamov1.Denial) bool {
				return o.GetRole() == d.GetRole() && o.GetName() == d.GetName() && o.GetSerial() == d.GetSerial()
			})
			list = append(list, d)
		}
		return list, nil
	}
}

// maxAhead limits how far a supervisor's clock may be ahead of this machine's, so that a supervisor cannot cause the revocation of later
// certificates.
const maxAhead = time.Hour

// revokedAt returns the time of a revocation: the latest of the clocks of this machine and the supervisors. All of them issue certificates,
// and a revocation by an earlier clock would leave new certificates valid.
func revokedAt(a *command.App, was *lofamov1.ListCertificatesResponse) (time.Time, error) {
	own, at := a.Env.Now(), was.GetClock().AsTime()
	clocks := fmt.Sprintf("this machine's clock says %s, and a supervisor's says %s", own.UTC().Format(time.RFC3339), at.Format(time.RFC3339))
	switch ahead := at.Sub(own); {
	case was.GetClock() == nil:
		a.Warnf("lofamoctl: the supervisors run an earlier version and do not report their clocks: certificates that they issued after %s by "+
			"their clocks stay valid\n", own.UTC().Format(time.RFC3339))
		return own, nil
	case ahead > maxAhead:
		return own, command.Usagef("%s: want at most %s between them: set the clock that is wrong, or leave that supervisor out of --server: "+
			"nothing was changed", clocks, maxAhead)
	case ahead > 0:
		return at, nil
	case ahead < -time.Minute:
		a.Warnf("lofamoctl: %s: the revocation also refuses certificates that a supervisor issues before its clock says %s\n", clocks,
			own.UTC().Format(time.RFC3339))
	}
	return own, nil
}

// checkSerial refuses a serial number for identities with two certificates: the other one would stay in force.
func checkSerial(serial string, args []string) error {
	for _, arg := range args {
		switch role, _, _ := strings.Cut(arg, "/"); {
		case serial == "":
		case pki.Role(role) == pki.RoleNode:
			return command.Usagef("--serial: given %q for %s: a serial number names a certificate of one half only: omit the flag to revoke "+
				"both halves", serial, arg)
		case pki.Role(role) == pki.RoleSupervisor:
			return command.Usagef("--serial: given %q for %s: a serial number names one of its two certificates only: omit the flag to "+
				"revoke both, or give --begins-before", serial, arg)
		}
	}
	return nil
}

func certUnrevokeCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "unrevoke ROLE/NAME...",
		Short: "Withdraw all revocations of identities: all or none",
		Long: `Withdraws revocations. Revoked certificates become valid again until they end: if a key may be stolen, wait until its
certificate has ended. An operator's revocation cannot be withdrawn: issue a new certificate instead.`,
		Example: "  lofamoctl cert unrevoke node/n1-0-1",
		Args:    someIdentities,
		RunE: func(cmd *cobra.Command, args []string) error {
			withdraw := func(ids []pki.Identity, _ string, was *lofamov1.ListCertificatesResponse) ([]*lofamov1.Denial, error) {
				list := was.GetList().GetDenials()
				n := len(list)
				list = slices.DeleteFunc(list, func(o *lofamov1.Denial) bool {
					return slices.ContainsFunc(ids, func(id pki.Identity) bool { return string(id.Role) == o.GetRole() && id.Name == o.GetName() })
				})
				if len(list) == n {
					return nil, command.Usagef("%s: not revoked: `lofamoctl cert list` lists the revoked identities", strings.Join(args, ", "))
				}
				return list, nil
			}
			return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
				return changeDenials(ctx, a, s, args, withdraw, "no longer revoked")
			})
		},
	}
}

func someIdentities(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return command.Usagef("ROLE/NAME is missing: want at least one, such as node/n1-0-1 or operator/alice")
	}
	return nil
}

// identities parses ROLE/NAME arguments. A node stands for both halves.
func identities(cluster string, args []string) ([]pki.Identity, error) {
	var out []pki.Identity
	for _, arg := range args {
		role, name, _ := strings.Cut(arg, "/")
		ids := []pki.Identity{{Cluster: cluster, Role: pki.Role(role), Name: name}}
		if pki.Role(role) == pki.RoleNode {
			if node, half, one := strings.Cut(name, "/"); one {
				return nil, command.Usagef("%s: given only the %s half: want node/%s for both: else the neighbours would call working links FAILED",
					arg, half, node)
			}
			ids = []pki.Identity{pki.NodeIdentity(cluster, fault.NodeID(name), fault.HalfHost),
				pki.NodeIdentity(cluster, fault.NodeID(name), fault.HalfDNP)}
		}
		for _, id := range ids {
			if err := id.Validate(); err != nil {
				return nil, command.Usagef("%s: want ROLE/NAME: %v", arg, err)
			}
			out = append(out, id)
		}
	}
	return out, nil
}

// operatorKeys returns the files with the operator's certificate, its key and the authority.
func operatorKeys(s command.Session) (cert, key, ca string) {
	if s.Cluster != nil {
		return s.Cluster.PKI("operator.pem"), s.Cluster.PKI("operator.key"), s.Cluster.PKI("ca.pem")
	}
	return s.Access.Cert, s.Access.Key, s.Access.CA
}

// changeDenials reads the list of revoked certificates, lets change derive a new list, and signs and stores it.
func changeDenials(ctx context.Context, a *command.App, s command.Session, args []string, change denialsChange, done string) error {
	cert, key, ca := operatorKeys(s)
	signer, err := pki.LoadSigner(cert, key)
	if err != nil {
		return command.Usage(err)
	}
	cluster := signer.Identity().Cluster
	ids, err := identities(cluster, args)
	if err != nil {
		return err
	}
	was, err := storedDenials(ctx, s, ca, cluster)
	if err != nil {
		return err
	}
	if lost := lostRevocations(was); lost != "" {
		a.Warnf("lofamoctl: %s\n", lost)
	}
	denials, err := change(ids, pki.WebSubject(signer.Identity()), was)
	if err != nil {
		return err
	}
	if err := putDenials(ctx, s, signer, a.Env.Now(), was.GetNextVersion(), denials); err != nil {
		return err
	}
	warnOfFormer(a, ca, signer.Cert())
	for _, id := range ids {
		a.Printf("%s is %s\n", pki.WebSubject(id), done)
	}
	return nil
}

// putDenials signs and stores a list of revoked certificates. at is the time of this machine's clock.
func putDenials(ctx context.Context, s command.Session, signer *pki.Signer, at time.Time, version uint64,
	denials []*lofamov1.Denial) error {
	signed, err := pki.SignDenyList(&lofamov1.DenyList{Cluster: signer.Identity().Cluster, Version: version, Issued: timestamppb.New(at),
		Denials: denials}, signer)
	if err != nil {
		return command.Usage(err)
	}
	if _, err := s.PutDenyList(ctx, signed); err != nil {
		return fmt.Errorf("change revocations: %w", command.Plain(err))
	}
	return nil
}

// storedDenials returns the list in force after verifying its signature: an operator must sign again only what an operator has signed.
func storedDenials(ctx context.Context, s command.Session, ca, cluster string) (*lofamov1.ListCertificatesResponse, error) {
	was, err := s.ListCertificates(ctx)
	if err != nil {
		return nil, fmt.Errorf("read revocations: %w", command.Plain(err))
	}
	if was.GetSigned() == nil {
		was.List = nil
		return was, nil
	}
	verify, err := pki.LoadVerifier(ca, cluster)
	if err != nil {
		return nil, command.Usage(err)
	}
	raw, err := proto.Marshal(was.GetSigned())
	if err != nil {
		return nil, err
	}
	l, err := pki.OpenDenyList(raw, verify, cluster)
	if err != nil {
		return nil, fmt.Errorf("read revocations: %w", err)
	}
	was.List = l.DenyList
	return was, nil
}
