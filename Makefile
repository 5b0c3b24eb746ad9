# Everything here is a plain go command too; .ci/run does all of it but cover, fuzz and bench, unattended.

.PHONY: lint test race cover fuzz bench ensemble-test ci

lint:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt would change: $$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	go mod tidy -diff

test:
	go test ./...

race:
	go test -race ./...

cover:
	go test -coverpkg=./... -coverprofile=cover.out ./...
	go tool cover -func=cover.out | tail -n 1

# FUZZTIME for each fuzz test there is.
FUZZTIME ?= 20s
fuzz:
	@grep -rl '^func Fuzz' --include='*_test.go' . | while read -r file; do \
		for name in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || exit 1; \
		done; \
	done

bench:
	go test -run '^$$' -bench . -benchmem ./...

# The suite over a real ensemble of three; ARGS are further arguments to go test.
ensemble-test:
	scripts/with-ensemble go test -race -count=1 -p 1 $(ARGS) ./...

ci:
	.ci/run
