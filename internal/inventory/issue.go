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

// issued is a certificate outside all bundles. The file's name gives its identity, so that a partly written one can be
// issued again.
type issued struct {
	pki.Identity
	base string // of its files, without .pem and .key
}

// people are the roles that have a certificate from the beginning, named after the role; all people with the role may
// share it.
var people = []pki.Role{pki.RoleViewer, pki.RoleOperator, pki.RoleApprover}

// certificate returns an identity's certificate with its path.
func (d *Dir) certificate(id pki.Identity) issued {
	switch {
	case id.Role == pki.RoleExecutor:
		return issued{id, d.file(executorsDir, id.Name, "pki", string(id.Role))}
	case id.Name == string(id.Role):
		return issued{id, d.file(operatorsDir, id.Name)}
	}
	return issued{id, d.file(operatorsDir, string(id.Role)+"-"+id.Name)}
}

// issued returns the certificates that Init and Issue have made, in the order of their names.
func (d *Dir) issued(cluster string) ([]issued, error) {
	var out []issued
	for _, role := range people {
		out = append(out, d.certificate(pki.Identity{Cluster: cluster, Role: role, Name: string(role)}))
	}
	files, err := entries(d.file(operatorsDir))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		base, isCert := strings.CutSuffix(f, ".pem")
		role, name, isIssued := strings.Cut(base, "-")
		if id := (pki.Identity{Cluster: cluster, Role: pki.Role(role), Name: name}); isCert && isIssued &&
			slices.Contains(people, id.Role) && id.Validate() == nil {
			out = append(out, d.certificate(id))
		}
	}
	executors, err := entries(d.file(executorsDir))
	if err != nil {
		return nil, err
	}
	for _, name := range executors {
		if id := (pki.Identity{Cluster: cluster, Role: pki.RoleExecutor, Name: name}); id.Validate() == nil {
			out = append(out, d.certificate(id))
		}
	}
	return out, nil
}

// entries of a directory that need not be there.
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out, nil
}

// Issue makes a certificate for one person or for an executor process; changes of keys renew it. It returns the
// certificate's file.
func (d *Dir) Issue(role pki.Role, name string) (string, error) {
	if !slices.Contains(people, role) && role != pki.RoleExecutor {
		return "", fmt.Errorf("role: given %q: want viewer, operator, approver or executor; nodes and supervisors are in the inventory",
			string(role))
	}
	unlock, err := d.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := d.wantWholeStep(); err != nil {
		return "", err
	}
	inv, err := d.Inventory()
	if err != nil {
		return "", err
	}
	id := pki.Identity{Cluster: inv.Cluster, Role: role, Name: name}
	if err := id.Validate(); err != nil {
		return "", err
	}
	ca, err := d.authority()
	if err != nil {
		return "", err
	}
	if role == pki.RoleExecutor && d.keys != "" && d.keys != pki.KeyEd25519 {
		return "", fmt.Errorf("key type: given %s: want %s, which executor processes have", d.keys, pki.KeyEd25519)
	}
	c := d.certificate(id)
	if exists(c.base + ".pem") {
		return "", fmt.Errorf("certificate %s.pem: exists already: want another name, or remove it first", c.base)
	}
	var options []pki.IssueOption
	if d.keys != "" {
		options = append(options, pki.WithKey(d.keys))
	}
	return c.base + ".pem", d.writeIssued(ca, c, false, options...)
}

func (d *Dir) writeIssued(ca *pki.CA, c issued, fresh bool, options ...pki.IssueOption) error {
	if err := os.MkdirAll(filepath.Dir(c.base), 0o700); err != nil {
		return err
	}
	if err := issue(ca, c.base, c.Identity, nil, fresh, options...); err != nil {
		return err
	}
	return d.copyCA(filepath.Dir(c.base))
}

// Ends returns the earliest expiry among the members' and people's certificates: peers reject its holder from then on.
func (d *Dir) Ends() (at time.Time, err error) {
	for _, kind := range []string{supervisors, nodesDir, operatorsDir, executorsDir} { // not other packages' directories
		err = errors.Join(err, fs.WalkDir(os.DirFS(d.path), kind, func(p string, e fs.DirEntry, err error) error {
			if e == nil && errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || e.IsDir() || filepath.Ext(p) != ".pem" || e.Name() == caCert {
				return err
			}
			ends, err := pki.Ends(d.file(p))
			if err == nil && (at.IsZero() || ends.Before(at)) {
				at = ends
			}
			return err
		}))
	}
	return at, err
}
