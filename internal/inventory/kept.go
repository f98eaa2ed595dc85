package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/pki"
)

// Kept are the files of a cluster that no operator keeps in a directory: in Kubernetes they are Secrets. The first key is the name of a
// Secret, the second the name of a file in it. A member's Secret has the keys of that member alone.
type Kept map[string]map[string][]byte

// Names of Secrets, besides the roles of people and SupervisorKept.
const (
	KeptAuthority = "authority" // files of the operator's directory outside bundles
	// KeptCA has nothing secret: the certificates of the authorities, by which nodes recognise supervisors.
	KeptCA = "ca"
)

// authorityFiles are the files of KeptAuthority.
var authorityFiles = []string{inventoryFile, caCert, caKey, issuerCert, issuerKey, gossipFile}

// maxKept is the largest size of a Secret in Kubernetes, in bytes.
const maxKept = 1 << 20

// SupervisorKept is the name of a supervisor's keys.
func SupervisorKept(id string) string {
	return "supervisor-" + strings.ReplaceAll(strings.ToLower(id), "_", "-")
}

// keptFiles returns the paths of the files in each Secret. Those of KeptCA are copies.
func (d *Dir) keptFiles(inv Inventory) map[string]map[string]string {
	out := map[string]map[string]string{KeptAuthority: {}, KeptCA: {caCert: d.file(supervisors, inv.Supervisors[0].ID, "pki", caCert)}}
	for _, name := range authorityFiles {
		out[KeptAuthority][name] = d.file(name)
	}
	for _, s := range inv.Supervisors {
		files := map[string]string{gossipFile: d.file(supervisors, s.ID, gossipFile)}
		for _, base := range []string{"supervisor", ecdsaPair, "issuer"} {
			for _, ext := range []string{".pem", ".key"} {
				files[base+ext] = d.file(supervisors, s.ID, "pki", base+ext)
			}
		}
		files[caCert] = d.file(supervisors, s.ID, "pki", caCert)
		out[SupervisorKept(s.ID)] = files
	}
	for _, role := range people {
		base := string(role)
		out[base] = map[string]string{caCert: d.file(operatorsDir, caCert), base + ".pem": d.file(operatorsDir, base+".pem"),
			base + ".key": d.file(operatorsDir, base+".key")}
	}
	return out
}

// KeptNames returns the names of a cluster's Secrets, the authority first.
func (inv Inventory) KeptNames() []string {
	names := []string{KeptAuthority, KeptCA}
	for _, s := range inv.Supervisors {
		names = append(names, SupervisorKept(s.ID))
	}
	for _, role := range people {
		names = append(names, string(role))
	}
	return names
}

// Keep makes the missing files of a cluster, renews certificates in the last third of their lifetime, and returns all files. An empty
// Kept makes a new cluster. The directory is for this call alone, and must be empty.
func (inv Inventory) Keep(dir string, kept Kept, now time.Time) (Kept, error) {
	if len(inv.Nodes) > 0 {
		return nil, fmt.Errorf("inventory: nodes: given %d: want none: the keys of nodes that enrol are made on their machines", len(inv.Nodes))
	}
	if _, err := inv.Layout(); err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, s := range inv.Supervisors {
		if other, taken := names[SupervisorKept(s.ID)]; taken {
			return nil, fmt.Errorf("inventory: supervisors %s and %s: want ids that differ in more than upper case and '_'", other, s.ID)
		}
		names[SupervisorKept(s.ID)] = s.ID
	}
	d := &Dir{path: dir, withAuthority: true}
	if len(kept[KeptAuthority]) == 0 {
		for name, files := range kept {
			if len(files) > 0 {
				return nil, fmt.Errorf("the Secret for %s is missing, but the one for %s exists: restore the missing one from your copy, or delete "+
					"all of them to make a new cluster", KeptAuthority, name)
			}
		}
		if err := d.Init(inv); err != nil {
			return nil, err
		}
		return d.keep(inv)
	}
	old, err := d.unpack(inv, kept)
	if err != nil {
		return nil, err
	}
	due, err := d.due(old, now)
	if err != nil {
		return nil, err
	}
	if _, err := d.Update(inv, due...); err != nil {
		return nil, err
	}
	return d.keep(inv)
}

// keep reads the files.
func (d *Dir) keep(inv Inventory) (Kept, error) {
	out := Kept{}
	for name, files := range d.keptFiles(inv) {
		out[name] = map[string][]byte{}
		for base, path := range files {
			b, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) && base == gossipFile {
				continue // a cluster without gossip
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out[name][base] = b
		}
	}
	return out, nil
}

// unpack writes the kept files into the directory, and returns the kept inventory. Members without files get new ones later.
func (d *Dir) unpack(inv Inventory, kept Kept) (Inventory, error) {
	for _, name := range authorityFiles {
		if len(kept[KeptAuthority][name]) == 0 {
			return Inventory{}, fmt.Errorf("%s: %s is missing: restore it from a copy", KeptAuthority, name)
		}
	}
	of := kept[KeptAuthority][inventoryFile]
	if err := errors.Join(os.MkdirAll(d.path, 0o700), os.WriteFile(d.file(inventoryFile), of, 0o600)); err != nil {
		return Inventory{}, err
	}
	old, err := d.Inventory()
	if err != nil {
		return old, fmt.Errorf("%s: %w", KeptAuthority, err)
	}
	if old.Cluster != inv.Cluster {
		return old, fmt.Errorf("cluster: given %s: want %s, the cluster of the existing Secrets", inv.Cluster, old.Cluster)
	}
	if err := errors.Join(os.MkdirAll(d.file(supervisors), 0o700), os.MkdirAll(d.file(operatorsDir), 0o700)); err != nil {
		return old, err
	}
	for name, files := range d.keptFiles(old) {
		size := 0
		for base, path := range files {
			b := kept[name][base]
			if size += len(b); size > maxKept {
				return old, fmt.Errorf("%s: has more than %d bytes", name, maxKept)
			}
			if len(b) == 0 || name == KeptCA {
				continue
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600)); err != nil {
				return old, err
			}
		}
	}
	return old, nil
}

// due returns the members and people whose certificate is in the last third of its lifetime, or whose pair is not good, in the terms of
// Update. It refuses an authority that has issued none of them.
func (d *Dir) due(inv Inventory, now time.Time) ([]string, error) {
	var out []string
	own, foreign := 0, ""
	check := func(id string, want pki.Identity, bases ...string) {
		for _, base := range bases {
			if !exists(base + ".pem") {
				continue // Update makes it
			}
			issued, due := pki.CheckPair(d.file(caCert), base+".pem", base+".key", want, now)
			if issued {
				own++
			} else {
				foreign = id
			}
			if due && !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
	}
	for _, s := range inv.Supervisors {
		keys := d.file(supervisors, s.ID, "pki")
		check(s.ID, pki.SupervisorIdentity(inv.Cluster, s.ID), filepath.Join(keys, "supervisor"), filepath.Join(keys, ecdsaPair))
	}
	for _, role := range people {
		name := string(role)
		check(name+"/"+name, pki.Identity{Cluster: inv.Cluster, Role: role, Name: name}, d.file(operatorsDir, name))
	}
	if own == 0 && foreign != "" {
		return nil, fmt.Errorf("%s: has not issued any certificate that is kept, such as that of %s: want the authority of this cluster",
			KeptAuthority, foreign)
	}
	return out, nil
}
