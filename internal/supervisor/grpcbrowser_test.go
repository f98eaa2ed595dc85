//go:build !race

package supervisor_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// certified starts Chromium with its own home directory, whose key database trusts the authority and has the viewer's
// certificate. A policy makes Chromium present that certificate. It reads policies from /etc/chromium, so it gets a
// private one.
const certified = `#!/bin/sh
exec unshare --mount sh -c '
policies=/etc/chromium/policies/managed
mount -t tmpfs none /etc/chromium && mkdir -p $policies && cp "$POLICY" $policies/ && exec "$CHROMIUM" "$@"' chromium "$@"
`

// makesDatabase imports the files of a viewer into $HOME/.pki/nssdb.
const makesDatabase = `
mkdir -p "$HOME/.pki/nssdb"
db=sql:$HOME/.pki/nssdb
certutil -d "$db" -N --empty-password
certutil -d "$db" -A -n authority -t C,, -i ca.pem
openssl pkcs12 -export -name viewer -in viewer.pem -inkey viewer.key -passout pass: -out viewer.p12
pk12util -d "$db" -i viewer.p12 -W ""
`

// TestBrowserCallsGRPC has Chromium, whose TLS is BoringSSL, list the nodes at the gRPC port with a viewer's certificate. A
// server with an Ed25519 key alone refuses the same browser.
func TestBrowserCallsGRPC(t *testing.T) {
	node, chromium := browser(t)
	for _, program := range []string{"certutil", "pk12util", "openssl", "unshare"} {
		requirements.Program(t, "Debian's packages libnss3-tools, openssl and util-linux", program)
	}
	if os.Geteuid() != 0 {
		requirements.Missing(t, "not root, who may give the browser a policy in a mount namespace")
	}
	g, c := newGuide(t)
	env := append(os.Environ(), "HOME="+g.dir, "CHROMIUM="+chromium, "LOFAMO_CHROMIUM="+g.write("certified", certified))
	if err := os.Chmod(filepath.Join(g.dir, "certified"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := g.shell(t, makesDatabase, env...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	call := func(address string) string {
		policy := fmt.Sprintf(`{"AutoSelectCertificateForUrls": ["{\"pattern\": \"https://%s\", \"filter\": {}}"]}`, address)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, node, "test/grpc.mjs")
		cmd.Dir, cmd.WaitDelay = filepath.Join("..", "..", "web"), time.Second
		cmd.Env = slices.Concat(env, []string{"POLICY=" + g.write("policy.json", policy), "LOFAMO_URL=https://" + address})
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := call(g.grpc); !strings.HasSuffix(out, "\ndone\n") {
		t.Errorf("the browser at the gRPC port: %s", out)
	}
	old, _ := onlyEd25519(t, c.Configs[0])
	if out := call(old); !strings.Contains(out, "ERR_SSL_VERSION_OR_CIPHER_MISMATCH") {
		t.Errorf("the browser at a server without an ECDSA pair: %s: want it refused", out)
	}
}
