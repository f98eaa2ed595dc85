package receiver

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// tolerance is the accepted difference of the clocks, and the lifetime of a copied request. A replay within that time
// changes nothing: its attempt is known.
const tolerance = 5 * time.Minute

// ParseSecret parses a secret: "whsec_" and base64.
func ParseSecret(s string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(s), "whsec_"))
	if err != nil || len(b) < 24 {
		return nil, errors.New("secret: want whsec_ and at least 24 bytes in base64")
	}
	return b, nil
}

// Verify returns an error unless the request is signed with one of the secrets.
func Verify(secrets [][]byte, h http.Header, body []byte, now time.Time) error {
	id, stamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if id == "" || err != nil {
		return errors.New("want Webhook-Id and Webhook-Timestamp")
	}
	if d := now.Sub(time.Unix(at, 0)); d > tolerance || d < -tolerance {
		return fmt.Errorf("Webhook-Timestamp: want one within %s of this machine's clock", tolerance)
	}
	for given := range strings.FieldsSeq(h.Get("Webhook-Signature")) {
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(given, "v1,"))
		if err != nil {
			continue
		}
		for _, s := range secrets {
			m := hmac.New(sha256.New, s)
			_, _ = fmt.Fprintf(m, "%s.%s.", id, stamp)
			_, _ = m.Write(body)
			if hmac.Equal(sum, m.Sum(nil)) {
				return nil
			}
		}
	}
	return errors.New("no signature in Webhook-Signature is right")
}
