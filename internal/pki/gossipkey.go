package pki

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
)

// gossipKeySize is the length of the gossip rail's key in bytes: AES-256.
const gossipKeySize = 32

// NewGossipKey writes a new key for the gossip rail, 32 random bytes in base64, for its owner only.
func NewGossipKey(file string) error {
	key := make([]byte, gossipKeySize)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("new gossip key: %w", err)
	}
	if err := writeFile(file, []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600); err != nil {
		return fmt.Errorf("write gossip key %s: %w", file, err)
	}
	return nil
}

// LoadGossipKey reads a key that NewGossipKey wrote.
func LoadGossipKey(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("gossip key %s: %w", file, reason(err))
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("gossip key %s: not base64: want %d bytes in base64", file, gossipKeySize)
	}
	if len(key) != gossipKeySize {
		return nil, fmt.Errorf("gossip key %s: %d bytes: want %d", file, len(key), gossipKeySize)
	}
	return key, nil
}
