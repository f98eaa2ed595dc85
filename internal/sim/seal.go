package sim

import (
	"bytes"
	"errors"
	"hash/fnv"
	"strings"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// sealer stands for a certificate and its key: the certificate is "role|name", the signature a hash of that and the
// payload. The simulator does not test forgery.
type sealer struct{ cert []byte }

func nodeSealer(name string) sealer { return sealer{[]byte(servicenet.RoleNode + "|" + name)} }

func (s sealer) Cert() []byte { return s.cert }

func (s sealer) Sign(payload []byte) []byte {
	h := fnv.New128a()
	_, _ = h.Write(s.cert)
	_, _ = h.Write(payload)
	return bytes.Repeat(h.Sum(nil), 4)
}

type verifier struct{}

func (verifier) VerifyName(cert, payload, sig []byte) (role, name string, err error) {
	role, name, ok := strings.Cut(string(cert), "|")
	if !ok || !bytes.Equal(sealer{cert}.Sign(payload), sig) {
		return "", "", errors.New("not signed by that certificate")
	}
	return role, name, nil
}
