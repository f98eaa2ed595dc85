package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
)

func clusterPlaceCommand(a *command.App) *cobra.Command {
	var node, replica, address string
	var follow time.Duration
	var p inventory.Placement
	cmd := &cobra.Command{
		Use:   "place INVENTORY (--node NAME [--address IP] | --supervisor ID [--address IP]) --keys DIR --etc DIR",
		Short: "In a container's init step: put the bundle of this member together from the inventory and its keys",
		Long: `Puts the bundle of one member together where it runs: the configuration follows from the inventory, which all machines may have; certificates and keys are the
member's own. It is what 'init' does for the member, without the authority; the chart (helm/lofamo) runs it before a node's or a replica's containers.

--keys has pki/ and gossip.key as 'init' made them, or a directory of the member's name that has these. --settings is a configuration file whose keys go before what
follows from the inventory. Files that are invalid, or not this member's, are refused, and nothing is written then; with --address a replica, too, that does not serve its health there.

--follow is for a container beside a replica's, where somebody renews certificates, as cert-manager does: the bundle is there already, and every so often the certificate and
key are brought from --keys if they are others than before. The replica takes them up by itself.`,
		Example: `  lofamoctl cluster place inventory.yaml --node n1-0-1 --keys /keys --etc /etc/lofamo`,
		Args:    command.Exactly("INVENTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("follow") && (replica == "" || follow < time.Second) {
				return command.Usagef("--follow: given %v: want 1s or more, with --supervisor", follow)
			}
			if node != "" && replica != "" || node == "" && address == "" && replica == "" {
				return command.Usagef("want a node (--node, --address) or a supervisor (--supervisor)")
			}
			if p.Keys == "" || !filepath.IsAbs(p.Etc) {
				return command.Usagef("--keys is missing, or --etc: given %q: want an absolute path", p.Etc)
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
			b, err := placed(inv, node, replica, addresses, p)
			if err != nil {
				return err
			}
			a.Printf("%s: %s is ready for %s\n", p.Etc, b.ID, b.Service)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&node, "node", "", "the node of this name")
	f.StringVar(&address, "address", "", "where none has that name: the node whose service is at this IP; of a supervisor: the address of its health check")
	f.StringVar(&replica, "supervisor", "", "the supervisor of this id, or of this number from 0 on")
	f.StringVar(&p.Keys, "keys", "", "directory with the member's pki/ and gossip.key (required)")
	f.StringVar(&p.Settings, "settings", "", "configuration file whose keys take precedence over those from the inventory")
	f.DurationVar(&follow, "follow", 0, "go on, and this often bring the supervisor's certificate and key if they were renewed; nothing else is written")
	f.StringVar(&p.Etc, "etc", "", "where the bundle is written and is to be found by what runs: an absolute path (required)")
	return cmd
}

// followKeys copies renewed keys until ctx ends. It reports a rejected pair once, and checks again: the next renewal
// may be good.
func followKeys(a *command.App, ctx context.Context, inv inventory.Inventory, i int, p inventory.Placement, every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	said := ""
	for {
		renewed, err := inv.Renew(i, p)
		switch {
		case err == nil:
			if said = ""; renewed {
				a.Printf("%s: the certificate of %s was renewed\n", p.Etc, inv.Supervisors[i].ID)
			}
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
