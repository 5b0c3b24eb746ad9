# Everything here is a plain go command too; .ci/run does all of it but cover, fuzz and bench, unattended.

.PHONY: lint test race cover fuzz bench ensemble-test ci

lint:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt would change: $$unformatted"; exit 1; }
	go vet work
	go tool staticcheck $$(go list work)
	scripts/tidy -diff

test:
	go test ./cmd/zsync ./examples ./examples/tour ./...

race:
	go test -race work

cover:
	go test -coverpkg=work -coverprofile=cover.out work
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
	go test -run '^$$' -bench . -benchmem work

# The suite over a real ensemble of three; ARGS are further arguments to go test.
ensemble-test:
	scripts/with-ensemble go test -race -count=1 -p 1 $(ARGS) work

ci:
	.ci/run
