package measure

import (
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Identities are the certificates of one half and one supervisor of a cluster that is only these two.
type Identities struct {
	Half, Supervisor *pki.Signer
	Verifier         *pki.Verifier
}

// NewIdentities makes an authority and the certificates that it signs.
func NewIdentities(origin fault.Origin, supervisor string) (ids Identities, err error) {
	const cluster = "bench"
	dir, err := os.MkdirTemp("", "lofamo-bench-pki-")
	if err != nil {
		return ids, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ca, err := pki.NewCA(cluster)
	if err != nil {
		return ids, err
	}
	issue := func(id pki.Identity, name string) (*pki.Signer, error) {
		cert, key := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
		if err := ca.IssueTo(cert, key, id, nil, nil); err != nil {
			return nil, err
		}
		return pki.LoadSigner(cert, key)
	}
	if ids.Half, err = issue(pki.NodeIdentity(cluster, origin.Node, origin.Half), "half"); err != nil {
		return ids, err
	}
	if ids.Supervisor, err = issue(pki.SupervisorIdentity(cluster, supervisor), "supervisor"); err != nil {
		return ids, err
	}
	ids.Verifier, err = pki.NewVerifier(ca.CertPEM(), cluster)
	return ids, err
}

// newExchangeKey makes the private key of one exchange of REQ and REP.
func newExchangeKey() (*ecdh.PrivateKey, error) {
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of a path's session: %w", err)
	}
	return k, nil
}
