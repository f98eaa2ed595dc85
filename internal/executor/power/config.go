// Package power resets nodes by their BMCs: Redfish, and IPMI where there is nothing better.
//
// A reset cannot be looked for and cannot be put back, so it is asked for once, by one request that is never repeated, and all that is not
// a plain answer is not known. What a BMC says is reported and proves nothing: that the node went down is for its neighbours, who
// see its links fall, and that it came back for its next boot epoch.
package power

import (
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

// Config of the executor.
type Config struct {
	// Enabled lets nodes be reset. Default false.
	Enabled bool `json:"enabled"`
	// Nodes are those that may be reset, with their BMCs; no other is. At least one.
	Nodes map[fault.NodeID]BMC `json:"nodes"`
}

// BMC is where a node is reset, and how.
type BMC struct {
	// Method is redfish or ipmi. A step of a policy that names the other is refused. Required.
	Method string `json:"method"`
	// Address is "https://host" or "https://host:port" of Redfish, "ip:port" (UDP, mostly 623) of IPMI. Required.
	Address string `json:"address"`
	// System is the path of the ComputerSystem, as /redfish/v1/Systems/1. Required with redfish.
	System string `json:"system,omitempty"`
	// Serial is the serial number that the system must have, else nothing is done: it finds lists that mix up nodes. With redfish only.
	// Default any.
	Serial string `json:"serial,omitempty"`
	// Reset is what is asked for: of redfish ForceRestart, PowerCycle or GracefulRestart (default ForceRestart), of ipmi
	// reset or cycle (default reset).
	Reset string `json:"reset,omitempty"`
	// Username at the BMC. Required.
	Username string `json:"username"`
	// PasswordFile holds the password, in its first line. Only its owner may read it, or root and the process' group. Required.
	PasswordFile string `json:"passwordFile"`
	// CAFile holds the authorities of the BMC's certificate, PEM. With redfish only. Default those of the host.
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

// filled returns it with its defaults.
func (b BMC) filled() BMC {
	if b.Reset == "" && len(resets[b.Method]) > 0 {
		b.Reset = resets[b.Method][0]
	}
	return b
}

// place is what no two nodes may share, and the host that it is at, however they are written; no host if the address is none.
func (b BMC) place() (place, host string) {
	var port string
	if u, err := url.Parse(b.Address); b.Method == methodRedfish && err == nil {
		host, port = strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), strings.TrimLeft(u.Port(), "0")
		if port == "" {
			port = "443"
		}
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

// Validate names every bad field. It looks at no file.
func (c Config) Validate() error {
	var errs []error
	if c.Enabled && len(c.Nodes) == 0 {
		errs = append(errs, errors.New("nodes: given nothing: want those that may be reset"))
	}
	seen := map[string]fault.NodeID{}                                              // by place
	hosts := map[string]map[string]fault.NodeID{methodRedfish: {}, methodIPMI: {}} // of each method
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
		// A host that is asked by both methods is one BMC, and what IPMI resets there is one of the systems that Redfish shows.
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
