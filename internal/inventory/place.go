package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Placement is one member's bundle, assembled on its machine: for systems with the inventory everywhere and a member's
// keys only on its own machine, as in a container's init step.
type Placement struct {
	// Keys is a directory with the member's pki/ and gossip.key, or with a directory of the member's name that has
	// both.
	Keys string
	// Settings is a file of configuration that overrides values from the inventory; empty or missing: none.
	Settings string
	// Etc is the directory of the bundle and of its configuration's files: an absolute path.
	Etc string
	// Host is the address at which the replica's health is checked, at the inventory's port: a pod's on the host's network. The
	// zero Addr: no check uses it.
	Host netip.Addr
	// SecondPair makes a replica's second pair required; otherwise the bundle has one if Keys has.
	SecondPair bool
}

// Node returns the number of this machine's node: the one with the name, or else with one of the addresses.
func (inv Inventory) Node(name string, addresses ...netip.Addr) (int, error) {
	l, err := inv.Layout()
	if err != nil {
		return 0, err
	}
	for i, n := range l.Nodes {
		if string(n.ID) == name {
			return i, nil
		}
	}
	for i, n := range l.Nodes {
		at, err := netip.ParseAddrPort(n.Service[0].Listen)
		if err != nil {
			return 0, fmt.Errorf("node %s: service: %w", n.ID, err)
		}
		for _, a := range addresses {
			if at.Addr() == a {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("node %q with the addresses %v: the inventory has no node of that name, and none whose service is at one of them",
		name, addresses)
}

// Replica is the number of the supervisor of that name, or of that number, from 0 on.
func (inv Inventory) Replica(id string) (int, error) {
	for i, s := range inv.Supervisors {
		if s.ID == id {
			return i, nil
		}
	}
	if i, err := strconv.Atoi(id); err == nil && i >= 0 && i < len(inv.Supervisors) {
		return i, nil
	}
	return 0, fmt.Errorf("supervisor %q: want the id of one of the inventory's %d supervisors, or its number from 0 on", id,
		len(inv.Supervisors))
}

// PlaceNode assembles the bundle of a node. It rejects a bad configuration or bad keys before it writes any file.
func (inv Inventory) PlaceNode(i int, p Placement) (Bundle, error) {
	l, err := inv.Layout()
	if err != nil {
		return Bundle{}, err
	}
	cfg := inv.agent(l, i, p.Etc)
	if err := p.settle(&cfg); err != nil {
		return Bundle{}, err
	}
	if err := cfg.Validate(); err != nil {
		return Bundle{}, fmt.Errorf("configuration of node %s: %w", cfg.Node, err)
	}
	return p.write(string(l.Nodes[i].ID), agentFile, cfg, []string{"host", "dnp"}, cfg.Service.GossipKeyFile != "")
}

// PlaceSupervisor is PlaceNode for a replica.
func (inv Inventory) PlaceSupervisor(i int, p Placement) (Bundle, error) {
	l, err := inv.Layout()
	if err != nil {
		return Bundle{}, err
	}
	cfg := inv.supervisor(l, i, p.Etc)
	pairs := []string{"supervisor"}
	// A replica that admits nodes needs an issuer. Without one, the bundle lacks a file, for which 'cluster place' can wait.
	if inv.enrols() || exists(filepath.Join(p.of(l.Supervisors[i].ID), "pki", issuerKey)) {
		cfg.Renewal, pairs = inv.renewal(p.Etc), append(pairs, "issuer")
	}
	if p.SecondPair || exists(filepath.Join(p.of(l.Supervisors[i].ID), "pki", ecdsaPair+".key")) {
		cfg.ECDSA, pairs = inv.ecdsa(p.Etc), append(pairs, ecdsaPair)
	}
	if err := p.settle(&cfg); err != nil {
		return Bundle{}, err
	}
	if err := cfg.Validate(); err != nil {
		return Bundle{}, fmt.Errorf("configuration of supervisor %s: %w", cfg.ID, err)
	}
	if err := p.heard(cfg, l.Supervisors[i].HTTP); err != nil {
		return Bundle{}, err
	}
	if err := p.own(l.Supervisors[i].ID); err != nil {
		return Bundle{}, err
	}
	return p.write(l.Supervisors[i].ID, supervisorFile, cfg, pairs, cfg.GossipKeyFile != "")
}

// own rejects a directory that has the keys of another cluster, whose replica may still run.
func (p Placement) own(id string) error {
	placed := filepath.Join(p.Etc, "pki", caCert)
	if !exists(placed) {
		return nil
	}
	given := filepath.Join(p.of(id), "pki", caCert)
	if same, err := pki.ShareAuthority(given, placed); err != nil || !same {
		return errors.Join(fmt.Errorf("place the bundle of %s: %s is from another authority than %s: want a directory of this cluster, or an "+
			"empty one", id, placed, given), err)
	}
	return nil
}

// heard rejects a replica that would never become ready, because the kubelet probes its health elsewhere. The kubelet uses the host's
// address and the port of the replica's http address in the inventory.
func (p Placement) heard(cfg config.Supervisor, inventory string) error {
	if !p.Host.IsValid() {
		return nil
	}
	probed, err := netip.ParseAddrPort(inventory)
	if err != nil {
		return fmt.Errorf("inventory: supervisor %s: http: %w", cfg.ID, err)
	}
	all := netip.AddrPortFrom(everywhere(p.Host), probed.Port())
	if cfg.HTTP == "" {
		return fmt.Errorf("configuration of supervisor %s: http: given nothing: want port %d of %s, which the kubelet probes, or %s", cfg.ID,
			probed.Port(), p.Host, all)
	}
	at, err := netip.ParseAddrPort(cfg.HTTP)
	if err != nil {
		return fmt.Errorf("configuration of supervisor %s: http: %w", cfg.ID, err)
	}
	if at.Port() != probed.Port() {
		return fmt.Errorf("configuration of supervisor %s: http: given %s: want port %d of the inventory's "+
			"ports.http, which the kubelet probes", cfg.ID, at, probed.Port())
	}
	if at.Addr().IsUnspecified() || at.Addr().Unmap() == p.Host.Unmap() {
		return nil
	}
	return fmt.Errorf("configuration of supervisor %s: http: given %s, and the kubelet probes this machine at %s: want an inventory "+
		"with that address, or listen at all addresses: http: %s, and the same for grpc and web.listen",
		cfg.ID, cfg.HTTP, p.Host, all)
}

func everywhere(of netip.Addr) netip.Addr {
	if of.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Renew copies a supervisor's certificates and keys again from their source, and reports whether they changed: a running
// replica loads them by itself (pki.Signer). Nothing else of the bundle changes. Renew rejects a pair that does not
// match, belongs to another member, or is not from the cluster's authority: the previous pair stays in use until it
// expires. A rejected pair does not hold back the other one. A copy that was interrupted is completed.
func (inv Inventory) Renew(i int, p Placement) (renewed bool, err error) {
	id := inv.Supervisors[i].ID
	to := filepath.Join(p.Etc, "pki")
	in, err := filepath.EvalSymlinks(filepath.Join(p.of(id),
		"pki")) // resolve a Secret's links once: the checked files are then the copied ones
	if err != nil {
		return false, fmt.Errorf("renewed keys of %s: %w", id, err)
	}
	want := pki.SupervisorIdentity(inv.Cluster, id)
	type pair struct {
		name  string
		check func(cert, key string) error
	}
	pairs := []pair{{"supervisor", func(cert, key string) error { return verify(filepath.Join(to, caCert), cert, key, want) }}}
	var errs []error
	switch given, placed := exists(filepath.Join(in, ecdsaPair+".key")), exists(filepath.Join(to, ecdsaPair+".key")); {
	case given && !placed:
		errs = append(errs, fmt.Errorf("second pair of %s: %s has one, but the bundle in %s has none: place it again", id, p.Keys, p.Etc))
	case !given && placed:
		errs = append(errs, fmt.Errorf("second pair of %s: the bundle in %s has one, but %s has none: it is not renewed", id, p.Etc, p.Keys))
	case given:
		pairs = append(pairs, pair{ecdsaPair, func(cert, key string) error {
			s, err := pki.LoadECDSA(cert, key, filepath.Join(to, caCert), want)
			if err != nil {
				return err
			}
			return s.CheckTime()
		}})
	}
	for _, of := range pairs {
		base := filepath.Join(in, of.name)
		if err := of.check(base+".pem", base+".key"); err != nil {
			errs = append(errs, fmt.Errorf("renewed keys of %s: %w", id, err))
			continue
		}
		changed, err := copyPair(base, filepath.Join(to, of.name))
		if err != nil {
			errs = append(errs, fmt.Errorf("renew keys of %s: %w", id, err))
		}
		renewed = renewed || changed
	}
	return renewed, errors.Join(errs...)
}

// copyPair copies the changed files of a pair, and reports whether there were any.
func copyPair(from, to string) (changed bool, err error) {
	for _, ext := range []string{".pem", ".key"} {
		b, err := os.ReadFile(from + ext)
		if err != nil {
			return changed, err
		}
		if old, err := os.ReadFile(to + ext); err == nil && bytes.Equal(old, b) {
			continue
		}
		if err := replace(to+ext, b, 0o600); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// of is the directory with a member's keys.
func (p Placement) of(id string) string {
	if own := filepath.Join(p.Keys, id); isDir(own) {
		return own
	}
	return p.Keys
}

// settle reads the settings over cfg.
func (p Placement) settle(cfg any) error { return settle(p.Settings, cfg) }

func settle(file string, cfg any) error {
	if err := config.ReadStrict(file, config.MaxNodesFile, cfg); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	return nil
}

// write makes the bundle next to its destination, checks it, and installs it.
func (p Placement) write(id, name string, cfg any, pairs []string, gossip bool) (b Bundle, err error) {
	keys := p.of(id)
	if err := os.MkdirAll(p.Etc, 0o700); err != nil {
		return b, fmt.Errorf("place the bundle of %s: %w", id, err)
	}
	tmp, err := os.MkdirTemp(p.Etc, ".place-")
	if err != nil {
		return b, fmt.Errorf("place the bundle of %s: %w", id, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return b, fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(tmp, name), text, 0o600); err != nil {
		return b, fmt.Errorf("place the bundle of %s: %w", id, err)
	}
	if err := os.Mkdir(filepath.Join(tmp, "pki"), 0o700); err != nil {
		return b, fmt.Errorf("place the bundle of %s: %w", id, err)
	}
	files := []string{filepath.Join("pki", caCert)}
	for _, base := range pairs {
		files = append(files, filepath.Join("pki", base+".pem"), filepath.Join("pki", base+".key"))
	}
	if gossip {
		files = append(files, gossipFile)
	}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(keys, f))
		if errors.Is(err, fs.ErrNotExist) {
			return b, fmt.Errorf("keys of %s: %w: want the files of 'lofamoctl cluster init', pki/ and gossip.key, in %s or %s", id, err,
				p.Keys, filepath.Join(p.Keys, id))
		}
		if err != nil {
			return b, fmt.Errorf("keys of %s: %w", id, err)
		}
		if err := os.WriteFile(filepath.Join(tmp, f), content, 0o600); err != nil {
			return b, fmt.Errorf("place the bundle of %s: %w", id, err)
		}
	}
	if b, err = OpenBundle(tmp); err != nil {
		return b, err
	}
	return b, b.Install("/", -1, -1, ConfigReplace)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// supervisor returns the configuration of replica i, with its bundle in etc.
func (inv Inventory) supervisor(l Layout, i int, etc string) config.Supervisor {
	cfg := l.Supervisor(i)
	cfg.TLS = config.SupervisorTLS{CA: filepath.Join(etc, "pki", caCert), Cert: filepath.Join(etc, "pki", "supervisor.pem"),
		Key: filepath.Join(etc, "pki", "supervisor.key")}
	if cfg.GossipListen != "" {
		cfg.GossipKeyFile = filepath.Join(etc, gossipFile)
	}
	if inv.Preset != "" {
		cfg.Preset = inv.Preset
	}
	return cfg
}

// ecdsa configures a replica with a second pair in its bundle in etc.
func (inv Inventory) ecdsa(etc string) config.KeyPair {
	return config.KeyPair{Cert: filepath.Join(etc, "pki", ecdsaPair+".pem"), Key: filepath.Join(etc, "pki", ecdsaPair+".key")}
}

// renewal configures a replica with the issuer's key in its bundle in etc.
func (inv Inventory) renewal(etc string) config.RenewalConfig {
	return config.RenewalConfig{Cert: filepath.Join(etc, "pki", issuerCert), Key: filepath.Join(etc, "pki", issuerKey),
		Lifetime: config.Duration(inv.nodeLifetime())}
}

// agent returns the configuration of node i, with its bundle in etc.
func (inv Inventory) agent(l Layout, i int, etc string) config.Agent {
	cfg := l.Agent(i)
	in := func(name string) string { return filepath.Join(etc, "pki", name) }
	host, dnp := fault.HalfHost.String(), fault.HalfDNP.String()
	cfg.TLS = config.AgentTLS{CA: in(caCert), HostCert: in(host + ".pem"), HostKey: in(host + ".key"), DNPCert: in(dnp + ".pem"),
		DNPKey: in(dnp + ".key")}
	if cfg.Service.GossipListen != "" {
		cfg.Service.GossipKeyFile = filepath.Join(etc, gossipFile)
	}
	if inv.Preset != "" {
		cfg.Preset = inv.Preset
	}
	return cfg
}
