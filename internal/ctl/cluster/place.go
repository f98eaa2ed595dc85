package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/program"
)

func clusterPlaceCommand(a *command.App) *cobra.Command {
	var node, replica, address string
	var follow, wait time.Duration
	var p inventory.Placement
	cmd := &cobra.Command{
		Use:   "place INVENTORY (--node NAME [--address IP] | --supervisor ID [--address IP]) --keys DIR --etc DIR",
		Short: "In a container's init step: make this member's bundle from the inventory and its keys",
		Long: `Makes the bundle of one member where it runs. The configuration follows from the inventory, which all machines may
have; certificates and keys are the member's own. This is what 'init' does for the member, without the authority; the
chart (helm/lofamo) runs it before a node's or a replica's containers.

--keys has pki/ and gossip.key as 'init' made them, or a directory of the member's name with these. --settings is a
configuration file whose keys override the values from the inventory. If files are invalid or belong to another
member, the command refuses them and writes nothing. With --address it also refuses a replica that does not serve its
health there, at the inventory's port.

--follow is for a container beside a replica's, if a program such as cert-manager renews certificates: the bundle
exists already, and at this interval the command copies the certificate and key from --keys if they have changed. The
replica loads them by itself. The command writes a lost bundle again.

--wait is for keys that another container brings: the command checks every second until no file is missing. With
--second-pair it also waits for a supervisor's second pair, and after a while continues without it.`,
		Example: `  lofamoctl cluster place inventory.yaml --node n1-0-1 --keys /keys --etc /etc/lofamo`,
		Args:    command.Exactly("INVENTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkPlace(cmd, follow, wait, replica, p); err != nil {
				return err
			}
			if node != "" && replica != "" || node == "" && address == "" && replica == "" {
				return command.Usagef("want a node (--node, --address) or a supervisor (--supervisor)")
			}
			var addresses []netip.Addr
			if address != "" {
				ip, err := netip.ParseAddr(address)
				if err != nil {
					return command.Usagef("--address: %v", err)
				}
				addresses = append(addresses, ip)
				p.Host = ip
			}
			inv, err := inventory.Load(args[0])
			if err != nil {
				return err
			}
			if follow != 0 {
				i, err := inv.Replica(replica)
				if err != nil {
					return fmt.Errorf("--supervisor: %w", err)
				}
				return followKeys(a, cmd.Context(), inv, i, p, follow)
			}
			return placeOnce(a, cmd.Context(), wait, p, func(p inventory.Placement) (inventory.Bundle, error) {
				return placed(inv, node, replica, addresses, p)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&node, "node", "", "the node of this name")
	f.StringVar(&address, "address", "", "if no node has that name: the node whose service is at this IP; for a supervisor: the address of "+
		"its health check")
	f.StringVar(&replica, "supervisor", "", "the supervisor of this id, or of this number from 0 on")
	f.StringVar(&p.Keys, "keys", "", "directory with the member's pki/ and gossip.key (required)")
	f.StringVar(&p.Settings, "settings", "", "configuration file whose keys take precedence over those from the inventory")
	program.DurationVar(f, &wait, "wait", 0, "wait at most this long for missing keys, 1s to 1h; default: do not wait")
	f.BoolVar(&p.SecondPair, "second-pair", false, "with --wait: a missing second pair is a missing key; when the time is over, do without")
	program.DurationVar(f, &follow, "follow", 0,
		"keep running; at this interval, copy the supervisor's certificate and key if they were renewed, and nothing else")
	f.StringVar(&p.Etc, "etc", "", "where the bundle is written and is to be found by what runs: an absolute path (required)")
	return cmd
}

// checkPlace checks the times and the directories.
func checkPlace(cmd *cobra.Command, follow, wait time.Duration, replica string, p inventory.Placement) error {
	if cmd.Flags().Changed("follow") && (replica == "" || follow < time.Second) {
		return command.Usagef("--follow: given %v: want 1s or more, with --supervisor", follow)
	}
	if cmd.Flags().Changed("wait") && (follow != 0 || wait < time.Second || wait > time.Hour) {
		return command.Usagef("--wait: given %v: want 1s to 1h, without --follow", wait)
	}
	if p.SecondPair && (replica == "" || wait == 0) {
		return command.Usagef("--second-pair: given without --supervisor or --wait: want both")
	}
	if p.Keys == "" || !filepath.IsAbs(p.Etc) {
		return command.Usagef("--keys is missing, or --etc: given %q: want an absolute path", p.Etc)
	}
	return nil
}

// placeOnce puts the bundle together when its keys are there. A second pair that is still missing at the end of the wait
// does not hold back the replica.
func placeOnce(a *command.App, ctx context.Context, wait time.Duration, p inventory.Placement,
	place func(inventory.Placement) (inventory.Bundle, error)) error {
	b, err := awaitKeys(a, ctx, wait, func() (inventory.Bundle, error) { return place(p) })
	if p.SecondPair && errors.Is(err, fs.ErrNotExist) {
		missing := err
		p.SecondPair = false
		if b, err = place(p); err == nil {
			a.Warnf("lofamoctl: no second pair after %s: clients that refuse Ed25519 cannot connect: %v\n", command.Duration(wait), missing)
		}
	}
	if b, err = warned(a)(b, err); err != nil {
		return err
	}
	a.Printf("%s: %s is ready for %s\n", p.Etc, b.ID, b.Service)
	return nil
}

// awaitKeys calls place every second until no file is missing, or for the given time. It returns the last result.
func awaitKeys(a *command.App, ctx context.Context, wait time.Duration, place func() (inventory.Bundle, error)) (inventory.Bundle, error) {
	b, err := place()
	if wait == 0 || !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	a.Printf("%v: waiting for at most %s\n", err, command.Duration(wait))
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return place()
		case <-t.C:
		}
		if b, err := place(); !errors.Is(err, fs.ErrNotExist) {
			return b, err
		}
	}
}

// followKeys copies renewed keys until ctx ends. It reports a rejected pair once, and checks again: the next renewal
// may be good.
func followKeys(a *command.App, ctx context.Context, inv inventory.Inventory, i int, p inventory.Placement, every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	said := ""
	for {
		renewed, err := inv.Renew(i, p)
		if _, lost := os.Stat(filepath.Join(p.Etc, "pki")); errors.Is(err, fs.ErrNotExist) && errors.Is(lost, fs.ErrNotExist) {
			_, err = inv.PlaceSupervisor(i, p)
			renewed = err == nil
		}
		if renewed { // perhaps one pair, beside an error of the other
			a.Printf("%s: the certificate of %s was renewed\n", p.Etc, inv.Supervisors[i].ID)
		}
		switch {
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			a.Printf("%s: %v\n", p.Etc, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func placed(inv inventory.Inventory, node, replica string, addresses []netip.Addr, p inventory.Placement) (inventory.Bundle, error) {
	if replica != "" {
		i, err := inv.Replica(replica)
		if err != nil {
			return inventory.Bundle{}, fmt.Errorf("--supervisor: %w", err)
		}
		return inv.PlaceSupervisor(i, p)
	}
	i, err := inv.Node(node, addresses...)
	if err != nil {
		return inventory.Bundle{}, fmt.Errorf("--node, --address: %w", err)
	}
	return inv.PlaceNode(i, p)
}

func clusterOwnCommand(a *command.App) *cobra.Command {
	var user, group int
	cmd := &cobra.Command{
		Use:   "own DIRECTORY --user UID --group GID",
		Short: "In a container's init step: give a directory to the user of the containers",
		Long: `Gives one directory, and nothing in it, to a user and a group, with mode 0700. The chart (helm/lofamo) uses it for a directory that
the kubelet has made for root. Needs CAP_CHOWN and CAP_FOWNER.`,
		Args: command.Exactly("DIRECTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			if user < 1 || group < 1 {
				return command.Usagef("--user %d, --group %d: want numbers above 0", user, group)
			}
			if err := errors.Join(os.Chmod(args[0], 0o700), os.Chown(args[0], user, group)); err != nil {
				return err
			}
			a.Printf("%s belongs to user %d and group %d\n", args[0], user, group)
			return nil
		},
	}
	cmd.Flags().IntVar(&user, "user", 0, "number of the user, 1 or more (required)")
	cmd.Flags().IntVar(&group, "group", 0, "number of the group, 1 or more (required)")
	return cmd
}
