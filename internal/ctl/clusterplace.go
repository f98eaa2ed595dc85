package ctl

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/inventory"
)

func (a *app) clusterPlaceCommand() *cobra.Command {
	var node, replica, address string
	var p inventory.Placement
	cmd := &cobra.Command{
		Use:   "place INVENTORY (--node NAME [--address IP] | --supervisor ID) --keys DIR --etc DIR",
		Short: "In a container's init step: put the bundle of this member together from the inventory and its keys",
		Long: `Puts the bundle of one member together where it runs: the configuration follows from the inventory, which all machines may have; certificates and keys are the
member's own. It is what 'init' does for the member, without the authority; the chart (helm/lofamo) runs it before a node's or a replica's containers.

--keys has pki/ and gossip.key as 'init' made them, or a directory of the member's name that has these. --settings is a configuration file whose keys go before what
follows from the inventory. What is not valid, or not this member's, is refused, and nothing is written then.`,
		Example: `  lofamoctl cluster place inventory.yaml --node n1-0-1 --keys /keys --etc /etc/lofamo`,
		Args:    exactly("INVENTORY"),
		RunE: func(_ *cobra.Command, args []string) error {
			if (node == "" && address == "") == (replica == "") {
				return usagef("want a node (--node, --address) or a supervisor (--supervisor)")
			}
			if p.Keys == "" || !filepath.IsAbs(p.Etc) {
				return usagef("--keys is missing, or --etc: given %q: want an absolute path", p.Etc)
			}
			var addresses []netip.Addr
			if address != "" {
				ip, err := netip.ParseAddr(address)
				if err != nil {
					return usagef("--address: %v", err)
				}
				addresses = append(addresses, ip)
			}
			inv, err := inventory.Load(args[0])
			if err != nil {
				return err
			}
			b, err := placed(inv, node, replica, addresses, p)
			if err != nil {
				return err
			}
			a.printf("%s: %s is ready for %s\n", p.Etc, b.ID, b.Service)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&node, "node", "", "the node of this name")
	f.StringVar(&address, "address", "", "where none has that name: the node whose service is at this IP")
	f.StringVar(&replica, "supervisor", "", "the supervisor of this id, or of this number from 0 on")
	f.StringVar(&p.Keys, "keys", "", "directory with the member's pki/ and gossip.key (required)")
	f.StringVar(&p.Settings, "settings", "", "configuration file whose keys go before what follows from the inventory")
	f.StringVar(&p.Etc, "etc", "", "where the bundle is written and is to be found by what runs: an absolute path (required)")
	return cmd
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
