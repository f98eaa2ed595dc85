package ctl

import (
	"strings"
	"testing"
)

func TestOneCertificateOfANodeIsNotRevoked(t *testing.T) {
	r := run(t, nil, "cert", "revoke", "node/n1", "--serial", "1a", "--reason", "lost")
	if r.code == 0 || !strings.Contains(r.stderr, `--serial: given "1a"`) {
		t.Errorf("a serial number of a node: %+v: want an error that names the flag", r)
	}
}
