package sensor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

const netDir = "class/net"

// judgeInterface judges a network interface by its link. A bond, or an interface on top of one, is SICK while a member of the bond is
// not well. The result is whether the link could be judged.
func judgeInterface(j *source.Judge, sys source.Root, name string) bool {
	state, text, err := linkOf(sys, name)
	j.Fail(err)
	if state != 0 {
		j.Say(state, 0, "", "%s", text)
	}
	below := []string{name} // and all interfaces that it is on top of, each once
	for i := 0; i < min(len(below), maxBelow); i++ {
		if members, err := sys.Text(netDir, below[i], "bonding/slaves"); err == nil {
			judgeMembers(j, sys, below[i], strings.Fields(members))
			continue
		}
		lower, _ := sys.Glob(netDir+"/"+below[i], "lower_*")
		for _, l := range lower {
			if l = strings.TrimPrefix(l, "lower_"); !slices.Contains(below, l) {
				below = append(below, l)
			}
		}
	}
	return state != 0
}

// maxBelow is the largest number of interfaces that an interface is on top of: a bridge has a port for each container.
const maxBelow = 256

// judgeMembers judges a bond by its members (Documentation/networking/bonding.rst).
func judgeMembers(j *source.Judge, sys source.Root, bond string, members []string) {
	for _, m := range members {
		state, text, err := linkOf(sys, m)
		mii, miiErr := sys.Text(netDir, m, "bonding_slave/mii_status")
		switch {
		case state > fault.Normal:
			j.Say(fault.Sick, 0, "", "a member of %s fails: %s", bond, text)
		case miiErr == nil && mii != "up":
			j.Say(fault.Sick, 0, "", "a member of %s fails: %s is %s", bond, m, mii)
		case state == 0 && miiErr != nil:
			j.Fail(err)
		}
	}
}

// linkOf judges operstate (RFC 2863 states, Documentation/networking/operstates.rst) and carrier. An interface whose
// driver keeps no operational state, such as lo, reports unknown and is judged by its carrier alone. The carrier of an
// interface that is administratively down is unreadable (EINVAL). The state is 0 if neither is a sign.
func linkOf(sys source.Root, name string) (state fault.State, text string, err error) {
	oper, operErr := sys.Text(netDir, name, "operstate")
	switch oper {
	case "down", "lowerlayerdown", "notpresent":
		return fault.Failed, name + " is " + oper, nil
	case "dormant", "testing":
		state, text = fault.Sick, name+" is "+oper
	case "up":
		state, text = fault.Normal, name+" is up"
	case "unknown":
	default:
		if operErr == nil {
			operErr = sys.Bad(fmt.Errorf("state %.40q is not one that is known", oper), netDir, name, "operstate")
		}
	}
	carrier, carrierErr := sys.Uint(netDir, name, "carrier")
	switch {
	case carrierErr != nil:
	case carrier == 0:
		state, text = fault.Failed, name+" has no carrier"
	case carrier > 1:
		carrierErr = sys.Bad(fmt.Errorf("holds %d: want 0 or 1", carrier), netDir, name, "carrier")
	case operErr != nil:
		state, text = fault.Normal, name+" has a carrier"
	case state <= fault.Normal:
		state, text = fault.Normal, name+" is "+oper+", carrier on"
	}
	return state, text, errors.Join(operErr, carrierErr)
}
