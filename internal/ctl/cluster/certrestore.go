package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
)

func certRestoreCommand(a *command.App) *cobra.Command {
	var older bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore revocations that the supervisors lost with a restore of their store, from a node's file",
		Long: `Reads the list of revoked certificates that a node has kept, and adds all its revocations that the supervisors lack to
theirs. FILE is a copy of the file "` + pki.DenyListFile + `" in the state directory of a node or an executor process, or - for the
standard input.

An operator must have signed FILE with a certificate that is still valid, and FILE must not be older than the supervisors' list. The
command removes no revocation: it names those that FILE does not have, because someone may have withdrawn them after the
snapshot. Every certificate that FILE revokes is refused again, and certificates issued after that revocation stay valid.
"cert list" then shows the time of the restore as the time of the revocation.

Run it before any other change of the list: the next change replaces the lists that nodes keep.`,
		Example: "  ssh n1-0-1 sudo cat /var/lib/lofamo/agent/revoked | lofamoctl cert restore -",
		Args:    command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, name, err := command.ReadBounded(args[0], cmd.InOrStdin(), pki.MaxDenyListSize)
			if err != nil {
				return err
			}
			return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
				return restoreDenials(ctx, a, s, name, raw, older)
			})
		},
	}
	cmd.Flags().BoolVar(&older, "accept-older", false, "accept FILE even if a node claims a newer list, which is then lost on all nodes")
	return cmd
}

// restoreDenials adds the revocations of a kept list to the supervisors' list. Unless older is set, it refuses the kept list if a node
// claims a newer one. The claim may be a lie, but if it is true, the change would replace the newer list on all nodes.
func restoreDenials(ctx context.Context, a *command.App, s command.Session, file string, raw []byte, older bool) error {
	cert, key, ca := operatorKeys(s)
	signer, err := pki.LoadSigner(cert, key)
	if err != nil {
		return command.Usage(err)
	}
	cluster := signer.Identity().Cluster
	was, err := storedDenials(ctx, s, ca, cluster)
	if err != nil {
		return err
	}
	kept, err := openKept(raw, was, ca, cluster)
	if err != nil {
		return command.Usagef("%s: %v: nothing was changed", file, err)
	}
	if newest := max(was.GetNextVersion(), 1) - 1; newest > kept.GetVersion() && !older {
		return command.Usagef("%s: has version %d of the revocations, and a node has version %d: want the file of that node, or --accept-older "+
			"if no node has it: nothing was changed", file, kept.GetVersion(), newest)
	}
	if proto.Equal(kept.DenyList, was.GetList()) {
		a.Printf("the supervisors have the revocations of %s, version %d: nothing was changed\n", file, kept.GetVersion())
		return nil
	}
	now := a.Env.Now()
	restored := pki.RestoreDenials(was.GetList(), kept.DenyList, now)
	if err := putDenials(ctx, s, signer, now, max(was.GetNextVersion(), kept.GetVersion()+1), restored.Denials); err != nil {
		return err
	}
	warnOfFormer(a, ca, signer.Cert())
	for _, id := range restored.Again {
		a.Printf("%s is revoked again\n", pki.WebSubject(id))
	}
	if len(restored.Again) == 0 {
		a.Printf("no revocation of %s was lost\n", file)
	}
	for _, name := range identityArgs(restored.Halves) {
		a.Warnf("lofamoctl: %s revokes one half of %s alone, which is not restored: to revoke both: lofamoctl cert revoke %s\n", file, name, name)
	}
	for _, name := range identityArgs(restored.Extra) {
		a.Warnf("lofamoctl: %s stays revoked, but %s does not revoke it: if its revocation was withdrawn: lofamoctl cert unrevoke %s\n",
			name, file, name)
	}
	return nil
}

// openKept verifies a kept list against the supervisors' list.
func openKept(raw []byte, was *lofamov1.ListCertificatesResponse, ca, cluster string) (pki.DenyList, error) {
	registry := pki.NewRegistry()
	verify, err := pki.LoadVerifier(ca, cluster, pki.WithRegistry(registry))
	if err != nil {
		return pki.DenyList{}, err
	}
	registry.Set(pki.DenyList{DenyList: was.GetList()}.Denials())
	kept, err := pki.OpenKeptDenyList(raw, verify, cluster)
	own, next := was.GetList().GetVersion(), max(was.GetNextVersion(), 1)
	switch {
	case err != nil:
		return pki.DenyList{}, err
	case kept.GetVersion() < own:
		return pki.DenyList{}, fmt.Errorf("version %d is older than the supervisors' list, version %d: repeat lost revocations with "+
			"'cert revoke'", kept.GetVersion(), own)
	case kept.GetVersion() >= next && kept.GetVersion()-next+1 >= pki.MaxVersionJump:
		return pki.DenyList{}, fmt.Errorf("version: given %d: want less than %d", kept.GetVersion(), next-1+pki.MaxVersionJump)
	}
	return kept, nil
}

// identityArgs returns identities as arguments of cert revoke and unrevoke: both halves of a node have one name.
func identityArgs(ids []pki.Identity) []string {
	var out []string
	for _, id := range ids {
		name := pki.WebSubject(id)
		if o, ok := id.Origin(); ok {
			name = string(pki.RoleNode) + "/" + string(o.Node)
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
