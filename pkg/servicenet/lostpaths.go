package servicenet

import (
	"fmt"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// directRail begins the names of rails that are service interfaces: "direct/INTERFACE".
const directRail = "direct/"

// LostPaths returns the service interfaces of a node that do not work, and the number of all, if at least one still works; nil: none, or
// the node fails on the service network as a whole.
func LostPaths(d *lofamov1.DeliveryStatus) (lost []string, of int) {
	for _, r := range d.GetRails() {
		name, direct := strings.CutPrefix(r.GetName(), directRail)
		if !direct {
			continue
		}
		if of++; r.GetDown() {
			lost = append(lost, name)
		}
	}
	if len(lost) == 0 || len(lost) == of {
		return nil, 0
	}
	return lost, of
}

// LostPathsWords describes lost service interfaces for people: "1 of 2 service paths left: eth0 is down"; empty: none is lost.
func LostPathsWords(lost []string, of int) string {
	if len(lost) == 0 {
		return ""
	}
	are := " is down"
	if len(lost) > 1 {
		are = " are down"
	}
	return fmt.Sprintf("%d of %d service paths left: %s%s", of-len(lost), of, strings.Join(lost, ", "), are)
}
