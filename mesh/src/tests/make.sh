#!/bin/sh
# Writes the certificates of this folder, which only the tests of this crate use. They are valid for a hundred years.
# Each file has the certificate, the certificates between it and the authority, and the key.
set -e
cd "$(dirname "$0")"
work=$(mktemp -d)
key() { openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$work/$1.key"; }
ext() { printf '%s\n' "$2" > "$work/$1.ext"; }

authority() { # name
    key "$1"
    ext "$1" "basicConstraints=critical,CA:TRUE"
    openssl req -new -key "$work/$1.key" -subj "/CN=$1" -out "$work/$1.csr"
    sign "$1" "$1" 20000101000000Z 21250101000000Z -selfsign
}
# name, of, from, to, more
sign() {
    name=$1 of=$2 from=$3 to=$4; shift 4
    mkdir -p "$work/$of.d"; touch "$work/$of.d/index"
    cat > "$work/$of.cnf" <<END
[ca]
default_ca = own
[own]
new_certs_dir = $work/$of.d
database = $work/$of.d/index
default_md = sha256
policy = any
rand_serial = yes
unique_subject = no
[any]
commonName = supplied
END
    certificate="-cert $work/$of.crt"; [ "$name" = "$of" ] && certificate=
    openssl ca -batch -notext -config "$work/$of.cnf" -keyfile "$work/$of.key" $certificate \
        -startdate "$from" -enddate "$to" -extfile "$work/$name.ext" \
        -in "$work/$name.csr" -out "$work/$name.crt" "$@" 2>/dev/null
}
process() { # name, of, from, to, extensions
    key "$1"
    ext "$1" "$5"
    openssl req -new -key "$work/$1.key" -subj "/CN=$1" -out "$work/$1.csr"
    sign "$1" "$2" "$3" "$4"
}

now="20000101000000Z 21250101000000Z"
plain="basicConstraints=CA:FALSE"
authority authority
authority other
process member authority $now "$plain"
process stranger other $now "$plain"
process old authority 20000101000000Z 20010101000000Z "$plain"
process serves authority $now "extendedKeyUsage=serverAuth"
process between authority $now "basicConstraints=critical,CA:TRUE"
process far between $now "$plain"
for name in member stranger old serves; do cat "$work/$name.crt" "$work/$name.key" > $name.pem; done
cat "$work/far.crt" "$work/between.crt" "$work/far.key" > far.pem
for name in authority other; do cp "$work/$name.crt" $name.pem; done
rm -r "$work"
