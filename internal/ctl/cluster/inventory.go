package cluster

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Command returns `lofamoctl cluster`, which works on the files of an inventory.
func Command(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster init|add-node|issue|rotate-keys|join|place|secrets|own",
		Short: "Make the files for the machines of a cluster: configurations, certificates, keys",
		Long: `Makes the files for the machines of a cluster: configurations, certificates, keys. It contacts no machine: for each
machine it makes a directory, the bundle. You carry the bundle there by your own means, and 'lofamoctl cluster join'
installs it.

The operator's directory (--out) has the key of the cluster's authority (ca.key). Keep it where only you can read it;
no machine gets it. 'lofamoctl up' makes a cluster on this machine, for a trial.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			const want = "want init, add-node, issue, rotate-keys, join, place, secrets or own"
			if len(args) == 0 {
				return command.Usagef("cluster: %s", want)
			}
			return command.Usagef("cluster %s: %s", args[0], want)
		},
	}
	cmd.AddCommand(clusterInitCommand(a), clusterAddNodeCommand(a), clusterIssueCommand(a), clusterRotateCommand(a), clusterJoinCommand(a),
		clusterPlaceCommand(a), clusterSecretsCommand(a), clusterOwnCommand(a))
	return cmd
}

func outFlag(cmd *cobra.Command, out *string) {
	cmd.Flags().StringVar(out, "out", "", "the operator's directory (required)")
}

// slurmFlag adds --slurm-topology.
func slurmFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "slurm-topology", "",
		"Slurm's topology.conf: nodes without the label switch get it from this file, the name of their leaf switch or their block")
}

// plan reads an inventory, and the file of --slurm-topology if it was given.
func plan(a *command.App, file, slurm string, former inventory.Inventory) (inventory.Inventory, inventory.Planned, error) {
	var switches inventory.Switches
	if slurm != "" {
		var err error
		if switches, err = inventory.LoadSwitches(slurm); err != nil {
			return inventory.Inventory{}, inventory.Planned{}, err
		}
	}
	inv, added, err := inventory.Plan(file, former, switches)
	if n := len(added.Unknown); n > 0 && err == nil {
		a.Warnf("lofamoctl: %s names no switch of %s: %s\n", slurm, fault.Plural(n, "node"), few(added.Unknown))
	}
	return inv, added, err
}

// few lists the first names of a list.
func few(names []string) string {
	const most = 5
	if n := len(names); n > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", n-most)
	}
	return strings.Join(names, ", ")
}

// keysFlag adds --key-type, for keys that a command makes.
func keysFlag(cmd *cobra.Command, keys *string, usage string) {
	cmd.Flags().StringVar(keys, "key-type", "", usage)
}

// open returns the operator's directory, whose new keys have the type of --key-type.
func open(out, keys string) (*inventory.Dir, error) {
	if err := wantOut(out); err != nil {
		return nil, err
	}
	k := pki.KeyType(keys)
	if keys != "" {
		if err := k.Validate(); err != nil {
			return nil, command.Usagef("--key-type: %v", err)
		}
	}
	return inventory.Open(out).WithKeys(k), nil
}

func wantOut(out string) error {
	if out == "" {
		return command.Usagef("--out is missing: the operator's directory")
	}
	return nil
}

func clusterInitCommand(a *command.App) *cobra.Command {
	var out, keys, slurm string
	cmd := &cobra.Command{
		Use:   "init INVENTORY --out DIR",
		Short: "Make authority, keys, certificates and configurations of a new cluster from its inventory",
		Long: `Makes authority, keys, certificates and configurations of a new cluster from its inventory. Nodes without coord get places
in which the death of one rack, switch or power feed (domainLabels) leaves as many nodes as possible with a witness. It also
adds a context with the cluster's name and the operator's certificate to your configuration file, so that lofamoctl on this
machine needs no further flags; it never changes an existing context (lofamoctl config).

The authority and people get ECDSA keys, which clients in every language accept. --key-type ed25519 gives them keys that browsers
and most gRPC clients outside Go refuse. Nodes always have Ed25519 keys, and supervisors one of each type.`,
		Example: `  lofamoctl cluster init deploy/examples/inventory.yaml --out hall7
  rsync -a hall7/nodes/n0-0-0/ n0-0-0:bundle/    and there: lofamoctl cluster join bundle`,
		Args: command.Exactly("INVENTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := open(out, keys)
			if err != nil {
				return err
			}
			inv, added, err := plan(a, args[0], slurm, inventory.Inventory{})
			if err != nil {
				return err
			}
			if err := d.Init(inv); err != nil {
				return err
			}
			a.Printf("%s: cluster %s, %s, %s\n", out, inv.Cluster, fault.Plural(len(inv.Supervisors), "supervisor"), nodesOf(inv))
			if added.Places > 0 {
				a.Printf("  inventory.yaml            has the chosen places of %s\n", fault.Plural(added.Places, "node"))
			}
			if added.Labelled > 0 {
				a.Printf("  inventory.yaml            has the label switch of %s from %s\n", fault.Plural(added.Labelled, "node"), slurm)
			}
			a.Printf("  supervisors/ID, nodes/ID  what each machine gets: carry it there, then 'lofamoctl cluster join DIR'; supervisors first\n")
			a.Printf("  operators/                certificates for people: --ca ca.pem --cert operator.pem --key operator.key\n")
			a.Printf("  ca.key                    signs certificates: keep it secret\n")
			a.Printf("  issuer.key                renews certificates of nodes only: the supervisors' bundles have it too\n")
			a.Printf("  prometheus-targets.json   targets for Prometheus: file_sd_configs, as in deploy/prometheus\n")
			writeContext(a, out, inv)
			sayUntil(a, out)
			return nil
		},
	}
	outFlag(cmd, &out)
	slurmFlag(cmd, &slurm)
	keysFlag(cmd, &keys, "keys of the authority and of people: ecdsa or ed25519 (default ecdsa)")
	return cmd
}

// nodesOf describes the nodes of an inventory.
func nodesOf(inv inventory.Inventory) string {
	if len(inv.Nodes) == 0 {
		return "no node yet: machines enrol"
	}
	return fmt.Sprintf("%s, %s", inv.Dims, fault.Plural(len(inv.Spares), "spare"))
}

func clusterAddNodeCommand(a *command.App) *cobra.Command {
	var out, renew, slurm string
	cmd := &cobra.Command{
		Use:   "add-node (INVENTORY | --renew ID) --out DIR",
		Short: "Update the bundles after a change of the inventory, or make new certificates for a replaced machine",
		Long: `Updates the bundles after a change of the inventory, and prints the members whose bundles have changed: carry those
over.

Nodes without coord keep the places that they have in the inventory.yaml of --out. New ones get a place, which changes
dims in all bundles.

A single added node is a spare (spares:), which 'lofamoctl node replace' puts in another node's place. To enlarge the
torus, add all nodes of the new plane. 'lofamoctl apply' adds the nodes to the running supervisors: their own files
count only for an empty store.

With --renew ID the node or replica of that name gets new keys and certificates, for a machine that replaces a lost
one. The old certificates stay valid until they end, unless you revoke them: 'lofamoctl cert revoke'. Processes load
new ones without a restart.`,
		Args: command.Between(0, "INVENTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := wantOut(out); err != nil {
				return err
			}
			if len(args) == 0 && renew == "" {
				return command.Usagef("INVENTORY is missing, or --renew ID")
			}
			if len(args) == 0 && slurm != "" {
				return command.Usagef("--slurm-topology: given %s: want it with INVENTORY", slurm)
			}
			var fresh []string
			if renew != "" {
				fresh = append(fresh, renew)
			}
			changed, err := inventory.Open(out).Change(func(inv inventory.Inventory) (inventory.Inventory, error) {
				if len(args) > 0 {
					var err error
					if inv, _, err = plan(a, args[0], slurm, inv); err != nil {
						return inv, err
					}
				}
				if renew != "" && !inv.Has(renew) {
					return inv, fmt.Errorf("--renew %s: no node or supervisor of the inventory has that name", renew)
				}
				return inv, nil
			}, fresh...)
			if err != nil {
				return err
			}
			sayChanged(a, out, changed)
			sayUntil(a, out)
			return nil
		},
	}
	outFlag(cmd, &out)
	slurmFlag(cmd, &slurm)
	cmd.Flags().StringVar(&renew, "renew", "", "new keys and certificates for this node or supervisor")
	return cmd
}

func clusterIssueCommand(a *command.App) *cobra.Command {
	var out, keys string
	cmd := &cobra.Command{
		Use:   "issue viewer|operator|approver|executor NAME --out DIR",
		Short: "Make a certificate for one more person, or for an executor process",
		Long: `Makes a certificate and key that no bundle has: a person's own, in operators/ROLE-NAME.pem, or that of an executor
process, in executors/NAME/pki. Approvals are counted by name: two people with one certificate give one approval.
'rotate-keys' renews it with all others; to prevent that, remove its files. It is valid for a year, or until the
authority is changed ('rotate-keys --authority').`,
		Example: `  lofamoctl cluster issue approver anna --out hall7`,
		Args:    command.Exactly("ROLE", "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			if !slices.Contains([]pki.Role{pki.RoleViewer, pki.RoleOperator, pki.RoleApprover, pki.RoleExecutor}, pki.Role(args[0])) {
				return command.Usagef("ROLE: given %q: want viewer, operator, approver or executor", args[0])
			}
			d, err := open(out, keys)
			if err != nil {
				return err
			}
			cert, err := d.Issue(pki.Role(args[0]), args[1])
			if err != nil {
				return err
			}
			ends, err := pki.Ends(cert)
			if err != nil {
				return err
			}
			a.Printf("%s, and its key and ca.pem beside it; it holds until %s\n", cert, day(ends))
			return nil
		},
	}
	outFlag(cmd, &out)
	keysFlag(cmd, &keys, "key of a person: ecdsa or ed25519 (default the type of the authority's key)")
	return cmd
}

func sayChanged(a *command.App, out string, members []string) {
	if len(members) == 0 {
		a.Printf("nothing has changed\n")
		return
	}
	a.Printf("changed, to be carried over:\n")
	for _, m := range members {
		a.Printf("  %s\n", filepath.Join(out, m))
	}
}

// sayUntil prints the end of the validity of the directory's certificates. The actual command is done by then, so an
// unreadable certificate is no failure here.
func sayUntil(a *command.App, out string) {
	at, err := inventory.Open(out).Ends()
	if err != nil {
		a.Warnf("lofamoctl: it is unknown when the certificates expire: %v\n", err)
		return
	}
	a.Printf("certificates hold until %s, when the first ends; 'rotate-keys' renews all\n", day(at))
}

// day is a time to the minute.
func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

func clusterRotateCommand(a *command.App) *cobra.Command {
	var out, step, keys string
	var authority bool
	cmd := &cobra.Command{
		Use:   "rotate-keys --step add|use|remove --out DIR",
		Short: "Change the gossip key and certificates, and optionally the authority, without downtime",
		Long: `Changes the gossip key and all certificates, in three steps. After each step carry the bundles to all machines
('lofamoctl cluster join'), restart the services one after the other ('lofamo-agent restart', 'systemctl restart
lofamo-supervisor'), and check that everything is NORMAL before the next step:

  add     members accept new keys, and still use the old ones
  use     members use new keys and certificates, and still accept the old ones
  remove  members no longer accept the old keys

Repeat an interrupted step: until then add-node and issue refuse. With --authority, given with 'add', the authority and
its key change too: after 'remove', no member accepts a certificate that the old authority signed. Programs of a version
that knows only one gossip key refuse a file with two: upgrade first.

A list of revoked certificates is void after 'remove' if a certificate of the old authority signed it. So, with
--authority, sign the list again between 'use' and 'remove', with an operator's new certificate: 'lofamoctl cert revoke
viewer/none --reason "sign the list again"'.

The new authority has an ECDSA key, which clients outside Go need, unless --key-type says otherwise. People whose key
has the type of the old authority's key get one of the new type.`,
		Args: command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			d, err := open(out, keys)
			if err != nil {
				return err
			}
			switch {
			case step == "":
				return command.Usagef("--step is missing: add, use or remove")
			case !slices.Contains([]inventory.Step{inventory.StepAdd, inventory.StepUse, inventory.StepRemove}, inventory.Step(step)):
				return command.Usagef("--step: given %q: want add, use or remove", step)
			}
			if keys != "" && (!authority || step != string(inventory.StepAdd)) {
				return command.Usagef("--key-type: given %s: want it only with --authority and --step add, which makes the authority", keys)
			}
			changed, err := d.Rotate(inventory.Step(step), authority)
			if err != nil {
				return err
			}
			sayChanged(a, out, changed)
			next := map[string]string{"add": "use", "use": "remove"}[step]
			if next != "" {
				a.Printf("when every machine has it and was restarted: --step %s\n", next)
			}
			if replaces, err := d.ReplacesAuthority(); err != nil {
				return err
			} else if replaces && step == string(inventory.StepUse) {
				a.Printf("before --step remove, if certificates are revoked, sign their list again with %s:\n  %s\n",
					filepath.Join(out, "operators", "operator.pem"), signAgain)
			}
			sayUntil(a, out)
			return nil
		},
	}
	outFlag(cmd, &out)
	cmd.Flags().StringVar(&step, "step", "", "add, use or remove (required)")
	cmd.Flags().BoolVar(&authority, "authority", false, "change the authority too; with --step add")
	keysFlag(cmd, &keys, "key of the new authority: ecdsa or ed25519 (default ecdsa)")
	return cmd
}

func clusterJoinCommand(a *command.App) *cobra.Command {
	var root, owner, keep string
	var anywhere, enable, dry bool
	cmd := &cobra.Command{
		Use:   "join BUNDLE",
		Short: "On a machine: check its bundle and install it",
		Long: `On a machine: checks its bundle and puts it into /etc/lofamo. It refuses the bundle of another machine (unless --anywhere is
given), a bundle with certificates that are invalid or belong to another member, and a bundle for a member other than the
installed one, or of another cluster than the installed node or replica. Only the owner can read the installed keys.

A configuration that was changed on the machine stays if the bundle still has the version before that change, for example when
only keys are new. If both have changed, join refuses and names the keys in which they differ: --config keep keeps the
machine's configuration, also at later joins, until the bundle has another one. --config replace installs the bundle's. Settings
for all machines of a kind belong in settings/agent.yaml or settings/supervisor.yaml of the operator's directory: 'add-node' and
'rotate-keys' bring them into the bundles.

It starts nothing, unless --enable is given: then it enables and starts the service.`,
		Example: `  lofamoctl cluster join bundle --enable`,
		Args:    command.Exactly("BUNDLE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if !slices.Contains([]inventory.Config{inventory.ConfigSafe, inventory.ConfigKeep, inventory.ConfigReplace}, inventory.Config(keep)) {
				return command.Usagef("--config: given %q: want keep or replace", keep)
			}
			b, err := warned(a)(inventory.OpenBundle(args[0]))
			if err != nil {
				return err
			}
			missing, err := b.Missing()
			if err != nil {
				return err
			}
			if len(missing) > 0 && !anywhere {
				return fmt.Errorf("bundle %s: no interface of this machine has %s, where %s listens (--anywhere installs it all the same)",
					args[0], join(missing), b.ID)
			}
			kept, err := b.Keeps(root, inventory.Config(keep))
			if err != nil {
				return err
			}
			if kept {
				a.Printf("%s: was changed on this machine, and stays\n", b.Configuration(root))
			}
			if dry {
				a.Printf("bundle of %s: good\n", b.ID)
				return nil
			}
			uid, gid, err := program.Owner(owner)
			if err != nil {
				return fmt.Errorf("--owner %s: %w", cmp.Or(owner, program.ServiceUser), err)
			}
			if err := b.Install(root, uid, gid, inventory.Config(keep)); err != nil {
				return err
			}
			a.Printf("%s: installed for %s\n", b.ID, b.Service)
			return startService(a, b, enable)
		},
	}
	f := cmd.Flags()
	f.StringVar(&root, "root", "/", "write below this directory, as into an image")
	f.StringVar(&owner, "owner", "", "owner of the keys (default the user lofamo of the packages if it exists, else you)")
	f.StringVar(&keep, "config", "", "keep a configuration that was changed on this machine, or replace it by the bundle's (default: refuse)")
	f.BoolVar(&anywhere, "anywhere", false, "accept the bundle of a machine with other addresses")
	f.BoolVar(&enable, "enable", false, "enable and start the service by systemctl")
	f.BoolVar(&dry, "check", false, "only check the bundle, and write nothing")
	return cmd
}

// startService starts the service of an installed bundle, or tells how to.
func startService(a *command.App, b inventory.Bundle, enable bool) error {
	start := b.StartCommand()
	if !enable {
		a.Printf("to start it: %s\n", strings.Join(start, " "))
		return nil
	}
	if out, err := exec.Command(start[0], start[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(start, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// warned passes a bundle on, and prints its warning.
func warned(a *command.App) func(inventory.Bundle, error) (inventory.Bundle, error) {
	return func(b inventory.Bundle, err error) (inventory.Bundle, error) {
		if err == nil && b.Warning != "" {
			a.Warnf("lofamoctl: %s\n", b.Warning)
		}
		return b, err
	}
}

func join[T fmt.Stringer](list []T) string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return strings.Join(out, ", ")
}
