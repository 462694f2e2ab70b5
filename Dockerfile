# pg_expiry on the official image of PostgreSQL: docker build --build-arg PG_MAJOR=18 --tag pg_expiry .
ARG PG_MAJOR=18

FROM postgres:${PG_MAJOR} AS build
ARG PG_MAJOR
ARG RUST_VERSION=1.95
RUN apt-get update && apt-get install --yes --no-install-recommends \
        build-essential ca-certificates clang curl libclang-dev libssl-dev make pkg-config "postgresql-server-dev-${PG_MAJOR}"
ENV RUSTUP_HOME=/opt/rustup CARGO_HOME=/opt/cargo PATH=/opt/cargo/bin:$PATH
RUN curl --proto '=https' --tlsv1.2 --silent --show-error --fail https://sh.rustup.rs \
        | sh -s -- -y --profile minimal --default-toolchain "${RUST_VERSION}"
WORKDIR /pg_expiry
COPY . .
# The same steps as everywhere: the tools, the release build, and its files under the paths where they belong.
RUN make all PG_CONFIG="/usr/lib/postgresql/${PG_MAJOR}/bin/pg_config" \
    && mv "target/pg/${PG_MAJOR}/install" /built

FROM postgres:${PG_MAJOR}
ARG PG_MAJOR
COPY --from=build /built/ /
# initdb copies the sample, so each new cluster of this image has it.
RUN echo "shared_preload_libraries = 'pg_expiry'" >> /usr/share/postgresql/postgresql.conf.sample
