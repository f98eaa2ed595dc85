package process

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/pkg/fault"
)

// ControllersConfig configures the management controllers that are read.
type ControllersConfig struct {
	// Every is the time between two looks at the controller of a healthy node, 1m to 24h. A suspect's controller is read
	// every 10s, and up to 2m apart while it does not answer. Default 15m.
	Every config.Duration `json:"every,omitempty"`
	// Timeout of one look, 1s to 1m. A look over IPMI takes at most 25s. Default 10s.
	Timeout config.Duration `json:"timeout,omitempty"`
	// AtOnce is the maximum number of concurrent looks, 2 to 64. Controllers that did not answer last time get at most half
	// of these looks. Default 16.
	AtOnce int `json:"atOnce,omitempty"`
	// Template has the values of fields that a node does not set. In address and system, {node} stands for the node's ID.
	Template Controller `json:"template,omitzero"`
	// Nodes lists the nodes whose controllers are read, at most 10,000: the fields that differ from the template. Default
	// none.
	Nodes map[fault.NodeID]Controller `json:"nodes,omitempty"`
}

// Controller is the management controller of a node.
type Controller struct {
	// Kind is redfish or ipmi. Required, here or in the template, as are address, username and passwordFile.
	Kind string `json:"kind,omitempty"`
	// Address is "https://host" or "https://host:port" for Redfish, and "host:port" (UDP, usually 623) for IPMI.
	Address string `json:"address,omitempty"`
	// System is the path of the ComputerSystem, for example /redfish/v1/Systems/1. Required with redfish.
	System string `json:"system,omitempty"`
	// Username of a user that may only read: ReadOnly in Redfish, the privilege USER in IPMI.
	Username string `json:"username,omitempty"`
	// PasswordFile holds the password in its first line. Only its owner, or root and the process' group, may read it.
	PasswordFile string `json:"passwordFile,omitempty"`
	// CAFile holds the authorities for the controller's certificate, PEM. With redfish only. Default: the host's
	// authorities.
	CAFile string `json:"caFile,omitempty"`
	// Pin is the SHA-256 of the controller's certificate, 64 hexadecimal digits. It replaces the check of authorities and
	// name. With redfish only, and not beside caFile. Default none.
	Pin string `json:"pin,omitempty"`
	// CipherSuite is the cipher suite of the session, 17 (SHA-256) or 3 (SHA-1). With ipmi only. Default: 17, and 3 if the
	// controller refuses it.
	CipherSuite int `json:"cipherSuite,omitempty"`
}

// maxControllers bounds the nodes in the configuration.
const maxControllers = 10_000

// filled returns the configuration with its defaults, and each node with the template's.
func (c ControllersConfig) filled() ControllersConfig {
	if c.Every == 0 {
		c.Every = config.Duration(15 * time.Minute)
	}
	if c.Timeout == 0 {
		c.Timeout = config.Duration(10 * time.Second)
	}
	if c.AtOnce == 0 {
		c.AtOnce = 16
	}
	nodes := make(map[fault.NodeID]Controller, len(c.Nodes))
	for id, n := range c.Nodes {
		nodes[id] = n.over(c.Template, id)
	}
	c.Nodes = nodes
	return c
}

// over returns the controller with the template's values in its empty fields. Fields of the other kind are not taken over.
func (c Controller) over(t Controller, id fault.NodeID) Controller {
	fill := func(to *string, from string) {
		if *to == "" {
			*to = strings.ReplaceAll(from, "{node}", string(id))
		}
	}
	fill(&c.Kind, t.Kind)
	fill(&c.Username, t.Username)
	fill(&c.PasswordFile, t.PasswordFile)
	if c.Kind != t.Kind && t.Kind != "" {
		return c
	}
	fill(&c.Address, t.Address)
	fill(&c.System, t.System)
	if c.Pin == "" && c.CAFile == "" {
		c.Pin, c.CAFile = t.Pin, t.CAFile
	}
	if c.CipherSuite == 0 {
		c.CipherSuite = t.CipherSuite
	}
	return c
}

func (c ControllersConfig) machine() controller.Config {
	return controller.Config{Every: time.Duration(c.Every), Timeout: time.Duration(c.Timeout), AtOnce: c.AtOnce}
}

// Validate reports every invalid field. It does not read files.
func (c ControllersConfig) Validate() error {
	c = c.filled()
	errs := []error{c.machine().Validate()}
	if len(c.Nodes) > maxControllers {
		errs = append(errs, fmt.Errorf("nodes: given %d: want at most %d", len(c.Nodes), maxControllers))
	}
	seen := map[string]fault.NodeID{}
	for _, id := range slices.Sorted(maps.Keys(c.Nodes)) {
		n := c.Nodes[id]
		errs = append(errs, n.validate(fmt.Sprintf("nodes.%s", id)))
		place, _ := BMC{Method: n.Kind, Address: n.Address, System: n.System}.place()
		if other, twice := seen[place]; twice {
			errs = append(errs, fmt.Errorf("nodes: %s and %s have the same controller, %s: want one node each", other, id, place))
		}
		seen[place] = id
	}
	return errors.Join(errs...)
}

func (c Controller) validate(at string) error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s.%s: given %q: want %s", at, field, given, want))
	}
	switch c.Kind {
	case methodRedfish:
		c.validateRedfish(bad)
	case methodIPMI:
		c.validateIPMI(bad)
	default:
		bad("kind", c.Kind, methodRedfish+" or "+methodIPMI)
	}
	if c.Username == "" || strings.ContainsAny(c.Username, ":\x00\n") {
		bad("username", c.Username, "a name without ':'")
	}
	if !filepath.IsAbs(c.PasswordFile) {
		bad("passwordFile", c.PasswordFile, "an absolute path")
	}
	if c.CAFile != "" && !filepath.IsAbs(c.CAFile) {
		bad("caFile", c.CAFile, "an absolute path, or nothing")
	}
	return errors.Join(errs...)
}

// validateRedfish calls bad for each invalid field of a controller of the kind redfish.
func (c Controller) validateRedfish(bad func(field string, given any, want string)) {
	u, err := url.Parse(c.Address)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		bad("address", c.Address, `"https://host" or "https://host:port"`)
	}
	if !strings.HasPrefix(c.System, "/redfish/v1/") || strings.ContainsAny(c.System, "?#") || strings.Contains(c.System, "..") {
		bad("system", c.System, "a path below /redfish/v1/")
	}
	if raw, err := hex.DecodeString(c.Pin); c.Pin != "" && (err != nil || len(raw) != 32) {
		bad("pin", c.Pin, "64 hexadecimal digits, or nothing")
	}
	if c.Pin != "" && c.CAFile != "" {
		bad("caFile", c.CAFile, "nothing beside pin")
	}
	if c.CipherSuite != 0 {
		bad("cipherSuite", strconv.Itoa(c.CipherSuite), "nothing with redfish")
	}
}

// validateIPMI calls bad for each invalid field of a controller of the kind ipmi.
func (c Controller) validateIPMI(bad func(field string, given any, want string)) {
	host, port, err := net.SplitHostPort(c.Address)
	if n, err2 := strconv.Atoi(port); err != nil || err2 != nil || host == "" || n < 1 || n > 65535 {
		bad("address", c.Address, `"host:port"`)
	}
	for _, f := range []struct{ field, given string }{{"system", c.System}, {"caFile", c.CAFile}, {"pin", c.Pin}} {
		if f.given != "" {
			bad(f.field, f.given, "nothing with ipmi")
		}
	}
	if c.CipherSuite != 0 && c.CipherSuite != 3 && c.CipherSuite != 17 {
		bad("cipherSuite", strconv.Itoa(c.CipherSuite), "3, 17, or nothing")
	}
	checkIPMIUser(c.Username, bad)
}

// checkFiles checks the files that the controllers name.
func (c ControllersConfig) checkFiles() error {
	errs := map[string]error{} // by path: a template's files are read once
	for _, n := range c.Nodes {
		if _, done := errs[n.PasswordFile]; !done {
			_, errs[n.PasswordFile] = passwordIn(n.PasswordFile)
		}
		if _, done := errs[n.CAFile]; !done {
			_, errs[n.CAFile] = authoritiesIn(n.CAFile)
		}
	}
	var out []error
	for _, path := range slices.Sorted(maps.Keys(errs)) {
		out = append(out, errs[path])
	}
	return errors.Join(out...)
}
