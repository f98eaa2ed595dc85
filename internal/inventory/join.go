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
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bundle is a machine's bundle.
type Bundle struct {
	Dir string
	// Service is the bundle's systemd unit: lofamo-agent or lofamo-supervisor.
	Service string
	// ID of the node or replica.
	ID string
	// Cluster is its cluster's name.
	Cluster string
	// Listen are the required IPs of the machine.
	Listen []netip.Addr
	// Warning names a fault of the optional second pair of a replica, which works without it; "": none.
	Warning string
	// etc is where its configuration expects it.
	etc string
}

// OpenBundle reads a bundle and makes all checks that are possible before its installation: the configuration is valid,
// the certificates are valid and belong to this member, and the keys belong to the certificates.
func OpenBundle(dir string) (Bundle, error) {
	for name, open := range map[string]func(string) (Bundle, error){agentFile: openAgent, supervisorFile: openSupervisor} {
		if exists(filepath.Join(dir, name)) {
			if err := single(dir); err != nil {
				return Bundle{}, fmt.Errorf("bundle %s: %w", dir, err)
			}
			b, err := open(filepath.Join(dir, name))
			if err != nil {
				return Bundle{}, fmt.Errorf("bundle %s: %w", dir, err)
			}
			return b, nil
		}
	}
	return Bundle{}, fmt.Errorf("bundle %s: neither agent.yaml nor supervisor.yaml in it: want nodes/ID or supervisors/ID of the operator's "+
		"directory", dir)
}

// single refuses a directory with a second bundle in it: a repeated 'scp -r' writes the newer bundle there. The directory of an installed
// bundle may have copies, and hidden directories are those of 'cluster place' and of mounted Secrets.
func single(dir string) error {
	path, err := filepath.Abs(dir)
	if err != nil || strings.HasSuffix(path, Etc) {
		return err
	}
	names, err := entries(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		inner := filepath.Join(dir, name)
		if !strings.HasPrefix(name, ".") && (exists(filepath.Join(inner, agentFile)) || exists(filepath.Join(inner, supervisorFile))) {
			return fmt.Errorf("%s is a bundle too, perhaps a newer one from a repeated 'scp -r': remove %s and copy the bundle again, "+
				"for example with 'rsync -a nodes/ID/ MACHINE:bundle/'", inner, dir)
		}
	}
	return nil
}

func openAgent(file string) (Bundle, error) {
	cfg, err := config.LoadAgent(file, nil)
	if err != nil {
		return Bundle{}, err
	}
	b := Bundle{Dir: filepath.Dir(file), Service: "lofamo-agent", ID: string(cfg.Node), Cluster: cfg.Cluster,
		etc: filepath.Dir(filepath.Dir(cfg.TLS.CA))}
	for _, c := range []struct {
		half      fault.Half
		cert, key string
	}{{fault.HalfHost, cfg.TLS.HostCert, cfg.TLS.HostKey}, {fault.HalfDNP, cfg.TLS.DNPCert, cfg.TLS.DNPKey}} {
		if err := b.check(cfg.TLS.CA, c.cert, c.key, pki.NodeIdentity(cfg.Cluster, cfg.Node, c.half)); err != nil {
			return Bundle{}, err
		}
	}
	listen := []string{cfg.Service.Listen}
	for _, l := range cfg.Links {
		listen = append(listen, l.Local)
	}
	return b.with(listen, cfg.Service.GossipKeyFile)
}

const supervisorService = "lofamo-supervisor"

func openSupervisor(file string) (Bundle, error) {
	cfg, err := config.LoadSupervisor(file, nil)
	if err != nil {
		return Bundle{}, err
	}
	b := Bundle{Dir: filepath.Dir(file), Service: supervisorService, ID: cfg.ID, Cluster: cfg.Cluster,
		etc: filepath.Dir(filepath.Dir(cfg.TLS.CA))}
	if err := b.check(cfg.TLS.CA, cfg.TLS.Cert, cfg.TLS.Key, pki.SupervisorIdentity(cfg.Cluster, cfg.ID)); err != nil {
		return Bundle{}, err
	}
	if c := cfg.ECDSA; c.Cert != "" {
		second, err := pki.LoadECDSA(b.here(c.Cert), b.here(c.Key), b.here(cfg.TLS.CA), pki.SupervisorIdentity(cfg.Cluster, cfg.ID))
		if err != nil {
			return Bundle{}, err
		}
		if err := second.CheckTime(); err != nil {
			b.Warning = fmt.Sprintf("%v: clients that refuse Ed25519 cannot connect until it is valid or renewed", err)
		}
	}
	if c := cfg.Renewal; c.Cert != "" {
		if _, err := pki.LoadIssuer(b.here(c.Cert), b.here(c.Key), cfg.Cluster); err != nil {
			return Bundle{}, err
		}
	}
	return b.with([]string{cfg.Report, cfg.GRPC}, cfg.GossipKeyFile)
}

func (b Bundle) with(listen []string, gossip string) (Bundle, error) {
	for _, l := range listen {
		ap, err := netip.ParseAddrPort(l)
		if err != nil {
			return Bundle{}, err
		}
		if !slices.Contains(b.Listen, ap.Addr()) {
			b.Listen = append(b.Listen, ap.Addr())
		}
	}
	slices.SortFunc(b.Listen, netip.Addr.Compare)
	if gossip != "" {
		if _, err := pki.LoadGossipKeys(b.here(gossip)); err != nil {
			return Bundle{}, err
		}
	}
	return b, nil
}

// here returns the path of the bundle's file for an installed path.
func (b Bundle) here(path string) string {
	return filepath.Join(b.Dir, strings.TrimPrefix(path, b.etc))
}

func (b Bundle) check(ca, cert, key string, want pki.Identity) error {
	return verify(b.here(ca), b.here(cert), b.here(key), want)
}

// verify rejects a pair that is not want's, does not match, or whose signatures verifiers with ca do not accept now.
func verify(ca, cert, key string, want pki.Identity) error {
	s, err := pki.LoadSigner(cert, key)
	if err != nil {
		return err
	}
	if s.Identity() != want {
		return fmt.Errorf("certificate %s: is that of %s: want %s", cert, s.Identity(), want)
	}
	v, err := pki.LoadVerifier(ca, want.Cluster)
	if err != nil {
		return err
	}
	word := []byte("lofamoctl cluster join")
	if _, err := v.Verify(s.Cert(), word, s.Sign(word)); err != nil {
		return fmt.Errorf("certificate %s: %w", cert, err)
	}
	return nil
}

// StartCommand enables and starts the bundle's service. It does not wait for a supervisor, which is ready only when most
// supervisors run.
func (b Bundle) StartCommand() []string {
	start := []string{"systemctl", "enable", "--now", b.Service}
	if b.Service == supervisorService {
		start = append(start, "--no-block")
	}
	return start
}

// Missing returns the addresses that the bundle's member listens on and that this machine lacks: the bundle may be
// another machine's. A listener at all addresses needs no particular one.
func (b Bundle) Missing() ([]netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this machine: %w", err)
	}
	return slices.DeleteFunc(slices.Clone(b.Listen), func(want netip.Addr) bool {
		return want.IsLoopback() || want.IsUnspecified() || slices.ContainsFunc(addrs, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(want.AsSlice())
		})
	}), nil
}

// Install writes the bundle where its configuration expects it, below root. It refuses to replace another member's
// bundle. Other files stay, and so does the configuration if Keeps says so. Keys are readable by their owner only: uid
// and gid, or the calling user where these are negative. The old files stay until all new ones are on the disk, because
// a new key does not belong to an old certificate. The configuration, which may name new files, is the last one.
func (b Bundle) Install(root string, uid, gid int, want Config) (err error) {
	etc := filepath.Join(root, b.etc)
	if err := b.sameMember(etc); err != nil {
		return err
	}
	keeps, err := b.Keeps(root, want)
	if err != nil {
		return err
	}
	var files durable.Batch
	defer func() { err = errors.Join(err, files.Discard()) }()
	err = fs.WalkDir(os.DirFS(b.Dir), ".", func(p string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return readableDir(filepath.Join(etc, p))
		case p == b.configuration():
			return nil
		}
		return b.add(&files, etc, p, uid, gid)
	})
	switch {
	case err != nil:
	case !keeps:
		err = b.add(&files, etc, b.configuration(), uid, gid)
	case want == ConfigKeep:
		err = b.remark(&files, root)
	}
	if err != nil {
		return err
	}
	if err := files.Commit(); err != nil {
		return fmt.Errorf("install in %s: %w", etc, err)
	}
	return nil
}

// add adds a file of the bundle to the new files, unless it is installed already. It sets the mode and owner of an installed one.
func (b Bundle) add(files *durable.Batch, etc, name string, uid, gid int) error {
	content, err := os.ReadFile(filepath.Join(b.Dir, name))
	if err != nil {
		return err
	}
	to, mode := filepath.Join(etc, name), fs.FileMode(0o600)
	if !strings.HasSuffix(name, ".key") {
		mode, uid, gid = 0o644, -1, -1
	}
	if old, readErr := os.ReadFile(to); readErr != nil || !bytes.Equal(old, content) {
		err = files.Add(to, content, mode, uid, gid)
	} else if err = os.Chmod(to, mode); err == nil && (uid >= 0 || gid >= 0) {
		err = os.Chown(to, uid, gid)
	}
	if err != nil {
		return fmt.Errorf("install %s: %w", to, err)
	}
	return nil
}

// readableDir makes a directory and its missing parents with mode 0755 under any umask: the service's user must enter them. It does not
// change existing directories.
func readableDir(path string) error {
	if exists(path) {
		return nil
	}
	if err := readableDir(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

// sameMember refuses to replace another member, because the new one would take over its state. It also refuses a bundle beside a member of
// another cluster, because their key files have the same names. It compares names: a machine that was off while the authority changed knows
// no present authority.
func (b Bundle) sameMember(etc string) error {
	for _, name := range []string{agentFile, supervisorFile} {
		path := filepath.Join(etc, name)
		cluster, id, err := installedMember(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("installed bundle: %w", err)
		}
		if cluster != "" && cluster != b.Cluster {
			return fmt.Errorf("bundle %s: cluster: given %s: want %s, as in %s: stop the services of that cluster, and remove %s and the "+
				"state directories first", b.Dir, b.Cluster, cluster, path, etc)
		}
		if name == b.configuration() && id != "" && id != b.ID {
			return fmt.Errorf("bundle %s: is that of %s: %s is that of %s: stop its service, and remove that file and the state directory "+
				"first", b.Dir, b.ID, path, id)
		}
	}
	return nil
}

// installedMember returns the names of an installed configuration's cluster and member; "": it has none. Other keys may be of a later
// version, before a rollback: installedMember ignores them.
func installedMember(path string) (cluster, id string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("configuration %s: %w", path, err)
	}
	var old struct {
		Cluster string `json:"cluster"`
		ID      string `json:"id"`
		Node    string `json:"node"`
		Dims    string `json:"dims"`
		Coord   string `json:"coord"`
	}
	if err := yaml.Unmarshal(text, &old); err != nil {
		return "", "", fmt.Errorf("configuration %s: %w", path, err)
	}
	if filepath.Base(path) != agentFile {
		return old.Cluster, old.ID, nil
	}
	if old.Node != "" {
		return old.Cluster, old.Node, nil
	}
	c, _, err := config.Agent{Dims: old.Dims, Coord: old.Coord}.Topology()
	if err != nil {
		return old.Cluster, "", nil //nolint:nilerr // it has neither a name nor a place
	}
	return old.Cluster, string(fault.DefaultNodeID(c)), nil
}
