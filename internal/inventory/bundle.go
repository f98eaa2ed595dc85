package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Etc is the directory of a machine's bundle.
const Etc = "/etc/lofamo"

// The operator's directory.
//
//	inventory.yaml          its inventory, written last
//	prometheus-targets.json where its metrics are, for Prometheus' file_sd_configs
//	ca.pem, ca.key          the authority. The key never leaves this directory.
//	issuer.pem, issuer.key  the issuer that renews node certificates; supervisors get its key. Directories of earlier versions have none
//	gossip.key              the gossip key, or during a change of keys both keys
//	next/                   the next authority and the next issuer, during a change of keys
//	operators/ROLE.pem,key  certificates for people, and ROLE-NAME.pem,key for one person
//	executors/NAME/pki/     files of an executor process
//	rotation.json           the change of keys that is under way
//	update-open             an update did not end: some members have changes that were not reported
//	settings/               agent.yaml, supervisor.yaml: the operator's values for all machines of that kind
//	nodes/ID/               bundle of a node
//	supervisors/ID/         bundle of a replica
//
// Bundles mirror Etc: agent.yaml or supervisor.yaml, pki/, gossip.key. A machine that has both a node and a replica
// gets both bundles.
const (
	inventoryFile  = "inventory.yaml"
	caCert         = "ca.pem"
	caKey          = "ca.key"
	issuerCert     = "issuer.pem"
	issuerKey      = "issuer.key"
	gossipFile     = "gossip.key"
	nextDir        = "next"
	operatorsDir   = "operators"
	nodesDir       = "nodes"
	supervisors    = "supervisors"
	settingsDir    = "settings"
	agentFile      = "agent.yaml"
	supervisorFile = "supervisor.yaml"
	executorsDir   = "executors"
	stepFile       = "rotation.json"
	updateFile     = "update-open"      // there until the update that made it has written all bundles
	ecdsaPair      = "supervisor-ecdsa" // a replica's second pair, for gRPC clients that refuse Ed25519
)

// Dir is an operator's directory. Init, Update, Change, Rotate and Issue lock it: only one of them runs at a time.
type Dir struct {
	path string
	keys pki.KeyType // of new authorities and of people's certificates; "": the default
	// withAuthority gives the issuer the authority's lifetime: nodes learn of a new issuer only when their halves restart.
	withAuthority bool
}

// Open is an operator's directory, which need not be there yet.
func Open(path string) *Dir { return &Dir{path: path} }

// WithKeys chooses the type of key of an authority that Init or Rotate makes, and of a person's certificate from Issue.
// "" is the default: ECDSA for an authority, and the authority's type for people.
func (d *Dir) WithKeys(k pki.KeyType) *Dir {
	with := *d
	with.keys = k
	return &with
}

// authorityKeys returns the type of key of a new authority.
func (d *Dir) authorityKeys() pki.KeyType {
	if d.keys == "" {
		return pki.KeyECDSA
	}
	return d.keys
}

func (d *Dir) file(elem ...string) string { return filepath.Join(append([]string{d.path}, elem...)...) }

// Init makes the directory: authority, gossip key, certificates for people, and a bundle for every machine. It refuses
// a directory that is not empty, and leaves nothing behind if it fails.
func (d *Dir) Init(inv Inventory) error {
	if _, err := inv.Layout(); err != nil {
		return err
	}
	_, err := os.Stat(d.path)
	absent := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return fmt.Errorf("make a cluster's files: %w", err)
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	there, err := os.ReadDir(d.path)
	switch {
	case err != nil:
		return fmt.Errorf("make a cluster's files: %w", err)
	case len(there) == 0:
	case exists(d.file(caKey)) && !exists(d.file(inventoryFile)):
		return fmt.Errorf("make a cluster's files in %s: the directory has an authority and has no %s: if an 'init' did not end, remove "+
			"the directory and repeat 'init'; if machines have files of this authority, restore %[2]s", d.path, inventoryFile)
	default:
		return fmt.Errorf("make a cluster's files in %s: the directory is not empty (%s): choose a new one; add-node and rotate-keys "+
			"change an existing one", d.path, there[0].Name())
	}
	if err := d.fill(inv); err != nil {
		return errors.Join(err, d.undo(absent))
	}
	return nil
}

// undo empties the directory after a failed Init, and removes it if Init has made it.
func (d *Dir) undo(remove bool) error {
	if remove {
		return os.RemoveAll(d.path)
	}
	all, err := entries(d.path)
	for _, name := range all {
		err = errors.Join(err, os.RemoveAll(d.file(name)))
	}
	return err
}

// fill fills the empty directory.
func (d *Dir) fill(inv Inventory) error {
	ca, err := pki.NewCAOf(d.authorityKeys(), inv.Cluster)
	if err != nil {
		return err
	}
	if err := ca.Save(d.file(caCert), d.file(caKey)); err != nil {
		return err
	}
	lifetime := pki.IssuerValidity
	if d.withAuthority {
		lifetime = pki.AuthorityValidity
	}
	if err := newIssuer(inv.Cluster, d.path, lifetime); err != nil {
		return err
	}
	if err := pki.NewGossipKey(d.file(gossipFile)); err != nil {
		return err
	}
	return d.write(inv, ca, everyone)
}

// newIssuer makes the files of an issuer in a directory.
func newIssuer(cluster, dir string, lifetime time.Duration) error {
	i, err := pki.NewIssuerFor(cluster, lifetime)
	if err != nil {
		return err
	}
	return i.Save(filepath.Join(dir, issuerCert), filepath.Join(dir, issuerKey))
}

// issuer returns the directory of the supervisors' issuer: the next issuer, if one exists, during step use of a change
// of keys. "": there is none.
func (d *Dir) issuer() (string, error) {
	r, err := d.rotation()
	if err != nil {
		return "", err
	}
	dirs := []string{d.path}
	if r.Step == StepUse {
		dirs = []string{d.file(nextDir), d.path}
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, issuerCert)); err == nil {
			return dir, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", nil
}

// whose selects the members whose certificates are issued again; nil: only members without a certificate.
type whose func(id string) bool

func everyone(string) bool { return true }

// write makes bundles of all members from the inventory, and removes those of former members. Certificates that fresh
// does not select stay.
func (d *Dir) write(inv Inventory, ca *pki.CA, fresh whose) error {
	l, err := inv.Layout()
	if err != nil {
		return err
	}
	if err := d.limitNodes(inv, ca); err != nil {
		return err
	}
	others, err := d.issued(inv.Cluster)
	if err != nil {
		return err
	}
	for _, c := range others {
		// The slash keeps it apart from the names of members.
		if err := d.writeIssued(ca, c, fresh(string(c.Role)+"/"+c.Name)); err != nil {
			return err
		}
	}
	var targets Targets
	for i, s := range l.Supervisors {
		http, err := d.writeSupervisor(inv, l, i, ca, fresh)
		if err != nil {
			return err
		}
		targets.Add(JobSupervisor, inv.Cluster, reached(http, s.GRPC))
	}
	for i, n := range l.Nodes {
		http, err := d.writeNode(inv, l, i, ca, fresh)
		if err != nil {
			return err
		}
		targets.Add(JobAgent, inv.Cluster, reached(http, n.Service[0].Listen))
	}
	if err := d.forgetOthers(l); err != nil {
		return err
	}
	list, err := targets.JSON()
	if err != nil {
		return err
	}
	if err := replace(d.file(TargetsFile), list, 0o644); err != nil {
		return err
	}
	b, err := yaml.Marshal(inv)
	if err != nil {
		return fmt.Errorf("write the inventory: %w", err)
	}
	return replace(d.file(inventoryFile), b, 0o644)
}

// limitNodes sets the lifetime of node certificates. A short one needs an issuer.
func (d *Dir) limitNodes(inv Inventory, ca *pki.CA) error {
	if inv.NodeCertificateDays == 0 {
		return nil
	}
	if from, err := d.issuer(); err != nil || from == "" {
		return errors.Join(err, fmt.Errorf("nodeCertificateDays: given %d: want none, since %s has no issuer that would renew the "+
			"certificates: 'lofamoctl cluster rotate-keys' makes one",
			inv.NodeCertificateDays, d.path))
	}
	ca.SetNodeLifetime(inv.nodeLifetime())
	return nil
}

func (d *Dir) forgetOthers(l Layout) error {
	known := map[string]bool{}
	for _, s := range l.Supervisors {
		known[d.file(supervisors, s.ID)] = true
	}
	for _, n := range l.Nodes {
		known[d.file(nodesDir, string(n.ID))] = true
	}
	var errs []error
	for _, kind := range []string{supervisors, nodesDir} {
		names, err := entries(d.file(kind))
		if err != nil {
			return err
		}
		for _, name := range names {
			if p := d.file(kind, name); !known[p] {
				errs = append(errs, os.RemoveAll(p))
			}
		}
	}
	return errors.Join(errs...)
}

// issue creates a certificate and its key, unless a pair exists and fresh is false. A new pair has the key type of the
// old one. But if that was the type of the old pair's authority, the new pair has the type of the present authority.
func issue(ca *pki.CA, base string, id pki.Identity, s *PlacedSupervisor, fresh bool, options ...pki.IssueOption) error {
	if exists(base+".pem") && !fresh {
		return nil
	}
	if own, signer, err := pki.KeyTypeOf(base + ".pem"); err == nil && own != signer {
		options = append(options, pki.WithKey(own))
	}
	if s == nil {
		return ca.IssueTo(base+".pem", base+".key", id, nil, nil, options...)
	}
	ips, err := s.IPs()
	if err != nil {
		return err
	}
	// For clients on the machine itself, such as those of the embedded etcd.
	return ca.IssueTo(base+".pem", base+".key", id, ips, []string{"localhost"}, options...)
}

// reached returns the address at which others reach a service, which uses the host of other if serves names none or
// every one, as settings for all machines of a kind do. It returns "" for a service for its own machine only.
func reached(serves, other string) string {
	host, port, err := net.SplitHostPort(serves)
	if err != nil {
		return serves
	}
	own, _, err := net.SplitHostPort(other)
	if err != nil {
		return serves
	}
	if ip, err := netip.ParseAddr(host); host != "" && (err != nil || !ip.IsUnspecified()) {
		if is, err := netip.ParseAddr(own); ip.IsLoopback() && err == nil && !is.IsLoopback() {
			return ""
		}
		return serves
	}
	return net.JoinHostPort(own, port)
}

// writeSupervisor makes a replica's bundle, and returns its metrics address.
func (d *Dir) writeSupervisor(inv Inventory, l Layout, i int, ca *pki.CA, fresh whose) (http string, err error) {
	id := l.Supervisors[i].ID
	dir, etc := d.file(supervisors, id), Etc
	if err := os.MkdirAll(filepath.Join(dir, "pki"), 0o700); err != nil {
		return "", err
	}
	identity, keys := pki.SupervisorIdentity(inv.Cluster, id), filepath.Join(dir, "pki")
	if err := errors.Join(issue(ca, filepath.Join(keys, "supervisor"), identity, &l.Supervisors[i], fresh(id)),
		issue(ca, filepath.Join(keys, ecdsaPair), identity, &l.Supervisors[i], fresh(id), pki.WithKey(pki.KeyECDSA))); err != nil {
		return "", err
	}
	cfg := inv.supervisor(l, i, etc)
	cfg.ECDSA = inv.ecdsa(etc)
	if err := d.giveIssuer(inv, dir, etc, &cfg); err != nil {
		return "", err
	}
	if err := d.settle(supervisorFile, &cfg); err != nil {
		return "", err
	}
	if err := cfg.Validate(); err != nil {
		return "", fmt.Errorf("configuration of supervisor %s: %w", id, err)
	}
	return cfg.HTTP, d.finish(dir, supervisorFile, cfg, cfg.GossipKeyFile != "")
}

// giveIssuer adds the issuer's certificate and key to a replica's bundle, and their paths to its configuration.
func (d *Dir) giveIssuer(inv Inventory, dir, etc string, cfg *config.Supervisor) error {
	from, err := d.issuer()
	if err != nil || from == "" {
		return err
	}
	for name, mode := range map[string]fs.FileMode{issuerCert: 0o644, issuerKey: 0o600} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := replace(filepath.Join(dir, "pki", name), b, mode); err != nil {
			return err
		}
	}
	cfg.Renewal = inv.renewal(etc)
	return nil
}

// writeNode makes a node's bundle, and returns its metrics address; empty: none.
func (d *Dir) writeNode(inv Inventory, l Layout, i int, ca *pki.CA, fresh whose) (http string, err error) {
	id := l.Nodes[i].ID
	dir, etc := d.file(nodesDir, string(id)), Etc
	if err := os.MkdirAll(filepath.Join(dir, "pki"), 0o700); err != nil {
		return "", err
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if err := issue(ca, filepath.Join(dir, "pki", h.String()), pki.NodeIdentity(inv.Cluster, id, h), nil, fresh(string(id))); err != nil {
			return "", err
		}
	}
	cfg := inv.agent(l, i, etc)
	if err := d.settle(agentFile, &cfg); err != nil {
		return "", err
	}
	if err := cfg.Validate(); err != nil {
		return "", fmt.Errorf("configuration of node %s: %w", id, err)
	}
	return cfg.HTTP, d.finish(dir, agentFile, cfg, cfg.Service.GossipKeyFile != "")
}

// settle reads the operator's settings, if any, over a configuration.
func (d *Dir) settle(name string, cfg any) error {
	file := d.file(settingsDir, name)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return settle(file, cfg)
}

// finish writes the common files of all bundles.
func (d *Dir) finish(dir, name string, cfg any, gossip bool) error {
	b, err := yaml.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := replace(filepath.Join(dir, name), marked(b), 0o644); err != nil {
		return err
	}
	if err := d.copyCA(filepath.Join(dir, "pki")); err != nil {
		return err
	}
	if !gossip {
		return nil
	}
	keys, err := d.gossipKeys()
	if err != nil {
		return err
	}
	return pki.SaveGossipKeys(filepath.Join(dir, gossipFile), keys)
}

// copyCA copies the authorities and issuers that are trusted. The authority that all members use comes first.
func (d *Dir) copyCA(dir string) error {
	all, err := os.ReadFile(d.file(caCert))
	if err != nil {
		return err
	}
	for _, further := range []string{d.file(nextDir, caCert), d.file(issuerCert), d.file(nextDir, issuerCert)} {
		b, err := os.ReadFile(further)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		all = append(all, b...)
	}
	return replace(filepath.Join(dir, caCert), all, 0o644)
}

// replace writes a file as a whole and syncs it to disk, unless it is as it should be.
func replace(path string, b []byte, mode fs.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		return os.Chmod(path, mode)
	}
	return durable.WriteFile(path, b, mode)
}

// Inventory returns the inventory of the last update.
func (d *Dir) Inventory() (Inventory, error) { return Load(d.file(inventoryFile)) }

// authority is the one that issues: while it is changed and in use, the next.
func (d *Dir) authority() (*pki.CA, error) {
	ca, err := pki.LoadCA(d.file(caCert), d.file(caKey))
	if err != nil {
		return nil, fmt.Errorf("the cluster's authority, which only its operator has: %w", err)
	}
	r, err := d.rotation()
	if err != nil || r.Step != StepUse || !r.CA {
		return ca, err
	}
	return pki.LoadCA(d.file(nextDir, caCert), d.file(nextDir, caKey))
}
