package process

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
)

// PowerConfig configures resets of nodes.
type PowerConfig struct {
	// Enabled allows resets of nodes. Default false.
	Enabled bool `json:"enabled"`
	// Nodes lists the nodes that may be reset, with their BMCs. At least one.
	Nodes map[fault.NodeID]BMC `json:"nodes"`
}

// BMC holds the address and method of a node's reset.
type BMC struct {
	// Method is redfish or ipmi. A policy step that names the other method is refused. Required.
	Method string `json:"method"`
	// Address is "https://host" or "https://host:port" for Redfish, and "ip:port" (UDP, usually 623) for IPMI.
	// Required.
	Address string `json:"address"`
	// System is the path of the ComputerSystem, for example /redfish/v1/Systems/1. Required with redfish.
	System string `json:"system,omitempty"`
	// Serial is the serial number that the system must have, or the reset is refused: this detects mixed-up lists. With
	// redfish only. Default any.
	Serial string `json:"serial,omitempty"`
	// Reset is the type of reset: for redfish ForceRestart, PowerCycle or GracefulRestart (default ForceRestart), for
	// ipmi reset or cycle (default reset).
	Reset string `json:"reset,omitempty"`
	// Username at the BMC. Required. With ipmi at most 16 bytes.
	Username string `json:"username"`
	// PasswordFile holds the password in its first line. Only its owner, or root and the process' group, may read it.
	// Required.
	PasswordFile string `json:"passwordFile"`
	// CAFile holds the authorities for the BMC's certificate, PEM. With redfish only. Default: the host's authorities.
	CAFile string `json:"caFile,omitempty"`
}

// The methods.
const (
	methodRedfish = "redfish"
	methodIPMI    = "ipmi"
)

var resets = map[string][]string{
	methodRedfish: {"ForceRestart", "PowerCycle", "GracefulRestart"},
	methodIPMI:    {"reset", "cycle"},
}

// filled returns the BMC with its defaults.
func (b BMC) filled() BMC {
	if b.Reset == "" && len(resets[b.Method]) > 0 {
		b.Reset = resets[b.Method][0]
	}
	return b
}

// place returns the normalised place of the reset, which must be unique among nodes, and its host; host is empty if the
// address is invalid.
func (b BMC) place() (place, host string) {
	var port string
	if u, err := url.Parse(b.Address); b.Method == methodRedfish && err == nil {
		host, port = strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), strings.TrimLeft(u.Port(), "0")
		port = cmp.Or(port, "443")
		if ip, err := netip.ParseAddr(host); err == nil {
			host = ip.Unmap().String()
		}
	} else if ap, err := netip.ParseAddrPort(b.Address); b.Method == methodIPMI && err == nil {
		host, port = ap.Addr().Unmap().String(), strconv.Itoa(int(ap.Port()))
	}
	if host == "" {
		return b.Method + " " + b.Address + " " + b.System, ""
	}
	place = b.Method + " " + net.JoinHostPort(host, port)
	if b.System != "" {
		place += " " + path.Clean(b.System)
	}
	return place, host
}

// Validate reports every invalid field. It does not read files.
func (c PowerConfig) Validate() error {
	var errs []error
	if c.Enabled && len(c.Nodes) == 0 {
		errs = append(errs, errors.New("nodes: given nothing: want those that may be reset"))
	}
	seen := map[string]fault.NodeID{}                                              // by place
	hosts := map[string]map[string]fault.NodeID{methodRedfish: {}, methodIPMI: {}} // by method
	for _, id := range slices.Sorted(maps.Keys(c.Nodes)) {
		b := c.Nodes[id].filled()
		errs = append(errs, b.validate(fmt.Sprintf("nodes.%s", id)))
		place, host := b.place()
		if other, twice := seen[place]; twice {
			errs = append(errs, fmt.Errorf("nodes: %s and %s are reset at the same place, %s: want one node each", other, id, place))
		}
		seen[place] = id
		if host == "" {
			continue
		}
		// If both methods use the same host, it is one BMC, and IPMI resets one of the systems that Redfish shows.
		for method, at := range hosts {
			if other, both := at[host]; both && method != b.Method {
				errs = append(errs, fmt.Errorf("nodes: %s and %s are reset at the same place, %s, by %s and %s: want one node each", other, id,
					host, method, b.Method))
			}
		}
		hosts[b.Method][host] = id
	}
	return errors.Join(errs...)
}

// maxIPMIUser is the maximum length of a user's name that IPMI 2.0 can carry, in bytes.
const maxIPMIUser = 16

// checkIPMIUser calls bad for a user's name that IPMI cannot carry.
func checkIPMIUser(name string, bad func(field string, given any, want string)) {
	if len(name) > maxIPMIUser {
		bad("username", name, fmt.Sprintf("at most %d bytes with ipmi", maxIPMIUser))
	}
}

func (b BMC) validate(at string) error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s.%s: given %q: want %s", at, field, given, want))
	}
	switch b.Method {
	case methodRedfish:
		u, err := url.Parse(b.Address)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			bad("address", b.Address, `"https://host" or "https://host:port"`)
		}
		if !strings.HasPrefix(b.System, "/redfish/v1/") || strings.ContainsAny(b.System, "?#") {
			bad("system", b.System, "a path below /redfish/v1/")
		}
	case methodIPMI:
		if ap, err := netip.ParseAddrPort(b.Address); err != nil || ap.Port() == 0 || ap.Addr().IsUnspecified() {
			bad("address", b.Address, `"ip:port" of one host`)
		}
		for field, given := range map[string]string{"system": b.System, "serial": b.Serial, "caFile": b.CAFile} {
			if given != "" {
				bad(field, given, "nothing with ipmi")
			}
		}
		checkIPMIUser(b.Username, bad)
	default:
		bad("method", b.Method, methodRedfish+" or "+methodIPMI)
	}
	if !slices.Contains(resets[b.Method], b.Reset) && resets[b.Method] != nil {
		bad("reset", b.Reset, "one of "+strings.Join(resets[b.Method], ", "))
	}
	if b.Username == "" || strings.ContainsAny(b.Username, ":\x00\n") {
		bad("username", b.Username, "a name without ':'")
	}
	if !filepath.IsAbs(b.PasswordFile) {
		bad("passwordFile", b.PasswordFile, "an absolute path")
	}
	if b.CAFile != "" && !filepath.IsAbs(b.CAFile) {
		bad("caFile", b.CAFile, "an absolute path, or nothing")
	}
	return errors.Join(errs...)
}
