package sensor

import (
	"errors"
	"fmt"
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
	bond, members := bondBelow(sys, name)
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
	return state != 0
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

// maxNest is the largest number of interfaces on top of each other: VLANs on a bond, and more.
const maxNest = 8

// bondBelow returns the bond that an interface is, or is on top of, and the bond's members
// (Documentation/networking/bonding.rst).
func bondBelow(sys source.Root, name string) (bond string, members []string) {
	for range maxNest {
		if slaves, err := sys.Text(netDir, name, "bonding/slaves"); err == nil {
			return name, strings.Fields(slaves)
		}
		lower, _ := sys.Glob(netDir+"/"+name, "lower_*")
		if len(lower) != 1 {
			break
		}
		name = strings.TrimPrefix(lower[0], "lower_")
	}
	return "", nil
}
